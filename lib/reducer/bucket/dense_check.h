// Checks of dense gradients in host memory. Threads: any thread.
#pragma once

#include "reducer/bucket/copy_in.h"
#include "reducer/state.h"

namespace weft {

// Makes the error for a call that is not for sparse gradients.
Status no_dense_gradient(const ReducerState& s, uint64_t param);
// Gives each parameter the check of its mode.
void add_dense_checks(ReducerState* s);

}  // namespace weft
