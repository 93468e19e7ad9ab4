// The handshake of ranks that may be uneven (WEFT_REDUCER_UNEVEN): the first exchange of a step.
// sync/step_handshake.h says what the ranks conclude from it.
#pragma once

#include "sync/features.h"

namespace weft {

extern const StepFeature kUneven;

}  // namespace weft
