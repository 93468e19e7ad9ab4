// Copies a bucket's result to its gradients on devices.
#pragma once

namespace weft {

struct ReducerState;

void add_device_return_work(ReducerState* state);

}  // namespace weft
