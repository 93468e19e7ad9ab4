// Dense gradients with a description: a tensor is checked against the manifest before it becomes ready.
// Threads: any thread.
#pragma once

#include "reducer/data.h"

namespace weft {

Status make_tensor_ready(ReducerData& r, uint64_t param, const weft_tensor& gradient,
                         const weft_stream* stream);

}  // namespace weft
