// Whether the options of a reducer can be meant. Used by Reducer::create, before ranks compare them. Pure;
// any thread.
#pragma once

#include <weft/weft.h>

#include "base/status.h"

namespace weft {

// size: ranks of the communicator. kArg naming what is wrong and what it needs. Parameters and a plan of the
// program's own are checked where they are read (manifest.h, plan.h).
Status check_options(const weft_reducer_options& options, int size);
// Of a list of bucket limits, wherever it is given.
Status check_limits(const uint64_t* limits, uint64_t count);

}  // namespace weft
