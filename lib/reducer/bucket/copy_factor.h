// The factor of this rank's contribution, for copies into a bucket that multiply. The rank knows the factor
// once every rank has begun the step (reducer/step/step_handshake.h). A gradient that comes later is
// multiplied as it is copied, and is marked. A pass over the bucket (feature/convert) multiplies all others.
// The choice depends on timing but changes no bit: both round the product once, to the same dtype.
//
// Threads: stated for each call.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "reducer/plan/plan.h"

namespace weft {

class CopyFactor {
 public:
  explicit CopyFactor(size_t params) : marks_(params) {}

  // ---- progress lock
  // Sets the factor of the step of this stamp.
  void know(uint32_t stamp, double factor) {
    factor_.store(factor, std::memory_order_relaxed);
    stamp_.store(stamp, std::memory_order_release);
  }
  // A range of consecutive elements from `first` on that are all multiplied already (done), or all not.
  // Called once all gradients of the bucket are ready.
  struct Range {
    uint64_t count = 0;
    bool done = false;
  };
  Range range(const PlannedBucket& bucket, uint64_t first, uint32_t stamp) const;

  // ---- the program's thread, between steps
  // Forgets the marks of the half that begins with `stamp` (reducer/step/stamps.h).
  void forget(uint32_t stamp);

  // ---- any thread: the one that claimed the parameter, before it is counted, so the step is not over
  // Returns the factor by which the copy of the gradient is to multiply, and marks the parameter. Returns 1,
  // and marks nothing, if the factor is not known yet.
  double take(uint64_t param, uint32_t stamp);

  uint64_t memory_bytes() const { return sizeof *this + marks_.capacity() * sizeof(uint32_t); }

 private:
  std::vector<uint32_t> marks_;  // per parameter: the stamp of the last step in which its copy multiplied
  std::atomic<double> factor_{1};
  std::atomic<uint32_t> stamp_{0};  // the step of factor_
};

}  // namespace weft
