// Weighted means (WEFT_DIVIDE_WEIGHTS): what a rank contributes is multiplied by its factor before it
// travels, which it knows once every rank has begun the step (sync/opening.h). In copy mode a gradient that
// comes later is multiplied as it is copied into its bucket, and is marked; a pass over the bucket
// (Step::make_up) multiplies all others. Which of the two it was depends on timing and changes no bit: both
// round the product once, to the same type.
//
// So not where the copy rounds as well, or the pass is needed anyway: gradients that travel as another type,
// add to what local steps have left, or are retained as they came. Made with the plan. Threads: said of each
// call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "sync/plan.h"

namespace weft {

struct ReducerState;

class Weighting {
 public:
  // For a state that has all else; null if no copy multiplies.
  static std::unique_ptr<Weighting> make(const ReducerState& state);

  // ---- drive lock
  // The factor of the step of this stamp.
  void know(uint32_t stamp, double factor) {
    factor_.store(factor, std::memory_order_relaxed);
    stamp_.store(stamp, std::memory_order_release);
  }
  // Once all gradients of the bucket are there: consecutive elements from `first` on, whether they have been
  // multiplied or not.
  struct Stretch {
    uint64_t count = 0;
    bool done = false;
  };
  Stretch stretch(const PlannedBucket& bucket, uint64_t first, uint32_t stamp) const;

  // ---- any thread, by who claimed the parameter, before it is counted: so the step is not over
  // What the copy multiplies by.
  double take(uint64_t param, uint32_t bucket, uint32_t stamp);

  uint64_t memory_bytes() const {
    return sizeof *this + buckets_.capacity() / 8 + marks_.capacity() * sizeof(uint32_t);
  }

 private:
  Weighting() = default;

  std::vector<bool> buckets_;    // whose copies may multiply
  std::vector<uint32_t> marks_;  // by parameter: the last step in which its copy has
  std::atomic<double> factor_{1};
  std::atomic<uint32_t> stamp_{0};  // of factor_
};

}  // namespace weft
