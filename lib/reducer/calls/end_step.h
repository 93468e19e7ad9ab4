// The end of a step: waits for it, and updates statistics and marks. Threads: one thread at a time, as begin
// and finish.
#pragma once

#include "reducer/data.h"

namespace weft {

// Waits for the step's end. All gradients are ready, or the communicator has failed.
// commit: waits until all ranks have finished the step as well.
Status wait_for_step(ReducerData& r, uint64_t entered_ns, bool commit, Deadline deadline);
inline Status wait_for_step(ReducerData& r, uint64_t entered_ns, bool commit, int64_t timeout_ms) {
  return wait_for_step(r, entered_ns, commit, r.state->comm->op_deadline(timeout_ms));
}
// Closes a step in which the ranks found nothing to reduce.
Status not_reduced(ReducerData& r);
// Starts a new accumulation window for the next step.
void next_window(ReducerData& r);

}  // namespace weft
