// The exchanges of the pre-step (sync/pre_step.h): the comparison of the ranks' values, and the broadcasts of
// buffers.
#pragma once

#include "sync/features.h"

namespace weft {

extern const StepFeature kPreStep;

}  // namespace weft
