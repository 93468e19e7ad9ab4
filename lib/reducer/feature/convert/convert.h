// Converts the contributions of a bucket to the communication dtype, and multiplies those that their copy has
// not multiplied by the rank's weight.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kConvert;

}  // namespace weft
