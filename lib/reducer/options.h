// Validates reducer options. Used by create_state, before ranks compare them. Pure; any thread.
#pragma once

#include <weft/weft.h>

#include <string>

#include "base/status.h"

namespace weft {

// size: ranks of the communicator. kArg, naming what is wrong and what it needs. Parameters and the program's
// own plan are checked where they are read (manifest.h, plan.h).
Status check_options(const weft_reducer_options& options, int size);
// Checks a list of bucket limits.
Status check_limits(const uint64_t* limits, uint64_t count);
// Return the name of a choice, which another rank may have sent.
const char* planner_name(weft_planner planner);
const char* accumulation_name(weft_accumulation accumulation);
// Returns the names of reducer flags, which another rank may have sent: "WEFT_REDUCER_RETAIN |
// WEFT_REDUCER_ABSENT", "0" for none. Unknown flags are numbers.
std::string reducer_flags_text(uint64_t flags);
// True if a reducer with this planner as weft_reducer_options.replan re-plans by itself.
inline bool replans(weft_planner planner) {
  return planner != WEFT_PLANNER_DEFAULT && planner != WEFT_PLANNER_NONE;
}

}  // namespace weft
