// The objects that depend on the plan and the communicator: builds them, agrees on them with the other ranks,
// and replaces it. Threads: one thread at a time, between steps.
#pragma once

#include <functional>
#include <memory>

#include "reducer/data.h"

namespace weft {

struct Agreement;

// Opens the reducer's lanes; both even if the first fails, so that the ranks of the hook's communicator keep
// the same lane numbers there too.
Status open_lanes(ReducerState* state);
void close_lanes(const ReducerState& state);
// Agrees with the ranks on the hook's collectives, for a state that has a plan, and makes the objects that
// depend on them. Collective. given: the error that keeps this rank from it; the other ranks receive it.
Status build_program(ReducerState* state, const Status& given, const Agreement& agreement);
// Installs the first state of a reducer. start_polling follows.
void install_program(ReducerData& r, std::shared_ptr<ReducerState> state);
// Lets the engine poll the step and the gather until stop_polling. An exception changes nothing.
void start_polling(ReducerData& r);
// Installs another state, with a step of its own, which `prepare` receives. *next receives the old state,
// which the caller releases.
void replace_program(ReducerData& r, std::shared_ptr<ReducerState>* next,
                     const std::function<void(Step&)>& prepare);
// Takes the step and the gather from the engine.
void stop_polling(ReducerData& r);

}  // namespace weft
