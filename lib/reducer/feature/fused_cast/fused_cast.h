// Copy mode: fused casts, where copies into a bucket do the rounding. A bucket may be stored in f32, because
// local steps add up there and contributions are retained in that dtype, but communicated in 16 bits. That is
// so for a narrowing hook (Hook::cast_dtype), whose stages are then left out, or with
// WEFT_REDUCER_ACCUMULATE_F32. Normally a pass rounds the bucket in place (feature/convert). In a fresh step
// (StepStart::fresh) gradients are copied directly in the communication dtype, which needs no pass. Without
// this feature the pass rounds everything, with the same result.
//
// Both ways give the same bits: the same product is rounded once. The two places of a gradient overlap those
// of others, so the gradients of a step are copied one way or the other.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kFusedCast;

}  // namespace weft
