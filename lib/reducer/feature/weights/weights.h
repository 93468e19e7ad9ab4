// Weighted means (WEFT_DIVIDE_WEIGHTS). A rank's contribution is multiplied by its factor before it is
// communicated. In copy mode the copy of a gradient does that (reducer/bucket/copy_factor.h), which saves a
// pass over the bucket. Without this feature the pass multiplies everything, with the same result.
//
// Copies do not multiply where the copy rounds as well, or the pass is needed anyway. That is so for
// gradients that are communicated in another dtype or add to what local steps have left, or if another
// feature works on contributions as they came (ReducerState::touches_contributions).
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kWeights;

}  // namespace weft
