// Waits for the pre-step. Threads: one thread at a time, as begin and finish.
#pragma once

#include "reducer/data.h"

namespace weft {

// Waits, in an open step, for the pre-step before its gradients. If that fails the step is over.
Status await_pre_step(ReducerData& r, int64_t timeout_ms);

}  // namespace weft
