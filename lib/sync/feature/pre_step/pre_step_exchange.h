// The exchanges of the pre-step (sync/pre_step.h): the comparison of the ranks' values, and the broadcasts of
// buffers.
#pragma once

namespace weft {

struct ReducerState;

void add_pre_step(ReducerState* state);

}  // namespace weft
