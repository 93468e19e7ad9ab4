// Parameters that are absent from a step (WEFT_REDUCER_ABSENT, WEFT_BEGIN_FIXED). The ranks exchange a map
// with one bit for each parameter (reducer/step/presence.h). A bucket whose parameters are all absent on
// every rank is not communicated.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kAbsent;

}  // namespace weft
