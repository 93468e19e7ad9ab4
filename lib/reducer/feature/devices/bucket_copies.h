// Shared by the works that copy between the memory of a bucket and gradients on devices.
#pragma once

#include <cstdint>
#include <utility>

#include "base/text.h"
#include "reducer/state.h"
#include "reducer/step/step_context.h"

namespace weft {

// Calls move(offset in the gradient, offset in the place, elements). Views have the layout of their places.
template <class Move>
void for_each_run(const ReducerState& s, const Buckets::Place& place, uint64_t first, uint64_t count,
                  Move&& move) {
  if (s.copy) return place.layout->for_each_run(first, count, move);
  if (count > 0) move(first, first, count);
}

// Fails the communicator. what: what was being copied.
inline void fail_on_device(const ReducerState& s, const StepContext& step, uint32_t bucket, const char* what,
                           const Status& status) {
  s.comm->fail(status
                   .with_prefix(cat("rank ", s.comm->rank(), ", step ", step.begun.number, ", ", what, " of ",
                                    s.plan.text(s.manifest, bucket), " on CUDA device ",
                                    s.devices->device(bucket), ": "))
                   .with_ranks({s.comm->rank()})
                   .with_step(step.begun.number));
}

}  // namespace weft
