// Describes what a step does, in the order in which it does it (docs/reference/report.md has the fields).
// Threads: between steps, one thread at a time.
#pragma once

#include <nlohmann/json.hpp>

#include "reducer/state.h"

namespace weft {

nlohmann::ordered_json program_json(const ReducerState& s);

}  // namespace weft
