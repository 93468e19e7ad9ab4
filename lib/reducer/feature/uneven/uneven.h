// The handshake of ranks that may be uneven (WEFT_REDUCER_UNEVEN): the first exchange of a step.
// reducer/step/step_handshake.h says what the ranks conclude from it.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kUneven;

}  // namespace weft
