// Finishes steps: checks that all gradients are ready, and waits for the end. Threads: one thread at a
// time, as begin, except where a comment says otherwise.
#pragma once

#include "reducer/data.h"

namespace weft {

// Checks the arguments of finish.
Status check_finish(const ReducerState& s, const weft_finish_options& options);
Status finish_step(ReducerData& r, const weft_finish_options& options);
// Passes finish's request to the step, once this rank has found no error in the step.
void publish_finish(const ReducerState& s, const weft_finish_options& options);
// Does nothing if the gradients have no norms.
void publish_finish(const ReducerState& s, const FinishRecord& request);
// Finishes a local step.
Status finish_local(ReducerData& r);
// Makes the error of a finish before all parameters are ready.
Status never_ready(ReducerData& r, const std::vector<uint32_t>& missing);
// Makes the error for a ready call that has not returned when finish has waited for it.
Status still_copied(const ReducerState& s, uint64_t param, const char* step);
// Waits for a finish that was left to streams, and returns the step's result once.
Status settle_finish(ReducerData& r);
// Settles what may be under way, and checks that no step is open. what: the call's name.
Status check_between_steps(ReducerData& r, const char* what);

}  // namespace weft
