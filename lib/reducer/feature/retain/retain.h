// Copies the contributions of a bucket before they are communicated, so that a failed step can be tried again
// (WEFT_REDUCER_RETAIN).
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kRetain;

}  // namespace weft
