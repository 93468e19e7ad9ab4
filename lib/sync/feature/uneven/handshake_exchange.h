// The handshake of ranks that may be uneven (WEFT_REDUCER_UNEVEN): the first exchange of a step.
// lib/sync/step_handshake.h says what the ranks conclude from it.
#pragma once

namespace weft {

struct ReducerState;

void add_handshake(ReducerState* state);

}  // namespace weft
