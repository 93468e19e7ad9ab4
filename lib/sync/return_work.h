// Copies a bucket's result to its gradients in host memory.
#pragma once

namespace weft {

struct ReducerState;

void add_return_work(ReducerState* state);

}  // namespace weft
