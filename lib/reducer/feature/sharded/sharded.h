// Sharded gradients (WEFT_REDUCER_SHARDED): each rank receives the slices that it owns (ownership.h), and
// parameters are gathered between steps (gather.h, gather_calls.h). Before a step, a gather ends.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kSharded;

}  // namespace weft
