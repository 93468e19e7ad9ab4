// The exchanges of the pre-step (pre_step_values.h): the comparison of the ranks' values, and the broadcasts
// of buffers.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kPreStep;

}  // namespace weft
