// The exchanges of the pre-step (reducer/feature/pre_step/pre_step.h): the comparison of the ranks' values,
// and the broadcasts of buffers.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kPreStep;

}  // namespace weft
