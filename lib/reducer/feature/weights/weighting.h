// Weighted means (WEFT_DIVIDE_WEIGHTS). A rank's contribution is multiplied by its factor before it is
// communicated. The rank knows the factor once every rank has begun the step (reducer/step/step_handshake.h).
// In copy mode a gradient that comes later is multiplied as it is copied into its bucket, and is marked. A
// pass over the bucket (feature/convert) multiplies all others. The choice depends on timing but changes no
// bit: both round the product once, to the same dtype.
//
// Copies do not multiply where the copy rounds as well, or the pass is needed anyway. That is so for
// gradients that are communicated in another dtype, add to what local steps have left, or are retained as
// they came. Made with the plan. Threads: stated for each call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "reducer/features.h"
#include "reducer/plan/plan.h"

namespace weft {

struct ReducerState;

class Weighting {
 public:
  // Makes the weighting for a state that is otherwise complete. Null if no copy multiplies.
  static std::unique_ptr<Weighting> make(const ReducerState& state);

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

  // ---- any thread: the one that claimed the parameter, before it is counted, so the step is not over
  // Returns the factor by which the copy of the gradient is to multiply, and marks the parameter. Returns 1,
  // and marks nothing, if the copy is not to multiply.
  double take(uint64_t param, uint32_t bucket, uint32_t stamp);

  bool multiplies(uint32_t bucket) const { return buckets_[bucket]; }  // copies of the bucket may multiply

  uint64_t memory_bytes() const {
    return sizeof *this + buckets_.capacity() / 8 + marks_.capacity() * sizeof(uint32_t);
  }

 private:
  Weighting() = default;

  std::vector<bool> buckets_;    // true: copies of the bucket may multiply
  std::vector<uint32_t> marks_;  // per parameter: the stamp of the last step in which its copy multiplied
  std::atomic<double> factor_{1};
  std::atomic<uint32_t> stamp_{0};  // the step of factor_
};

// Lets the copies multiply gradients of buckets where they may.
extern const StepFeature kWeights;

}  // namespace weft
