// Validates reducer options. Used by Reducer::create, before ranks compare them. Pure; any thread.
#pragma once

#include <weft/weft.h>

#include "base/status.h"

namespace weft {

// size: ranks of the communicator. kArg, naming what is wrong and what it needs. Parameters and the program's
// own plan are checked where they are read (manifest.h, plan.h).
Status check_options(const weft_reducer_options& options, int size);
// Checks a list of bucket limits.
Status check_limits(const uint64_t* limits, uint64_t count);

}  // namespace weft
