// Records when gradients became ready in a step, and in which order. Keeps the last step that was recorded.
// Part of a reducer's state.
//
// Threads: begin, noted, params and times by the program's thread between steps; note by any thread, for
// parameters that it has claimed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace weft {

// Per parameter, ns since its step began; kNeverReady if it did not become ready.
inline constexpr uint64_t kNeverReady = UINT64_MAX;
using ReadyTimes = std::vector<uint64_t>;

class ReadyOrder {
 public:
  explicit ReadyOrder(size_t params) : position_(params, kNever), times_(params, kNeverReady) {}

  void begin() {
    std::fill(position_.begin(), position_.end(), kNever);
    std::fill(times_.begin(), times_.end(), kNeverReady);
    next_ = 0;
  }
  // Uses no atomic read-modify-write: two threads may take the same number, or an earlier one. The times
  // order them; the numbers decide only where times are equal. (Builtins, because a std::atomic store is an
  // exchange without optimisation.)
  void note(uint64_t param, uint64_t since_begin_ns) {
    const uint32_t number = __atomic_load_n(&next_, __ATOMIC_RELAXED);
    __atomic_store_n(&next_, number + 1, __ATOMIC_RELAXED);
    position_[param] = number;
    times_[param] = since_begin_ns;
  }

  bool noted() const { return __atomic_load_n(&next_, __ATOMIC_RELAXED) > 0; }
  // Returns all parameters; those that never became ready come last.
  std::vector<uint32_t> params() const {
    std::vector<uint32_t> out(position_.size());
    std::iota(out.begin(), out.end(), 0u);
    std::stable_sort(out.begin(), out.end(), [&](uint32_t a, uint32_t b) {
      return std::pair(times_[a], position_[a]) < std::pair(times_[b], position_[b]);
    });
    return out;
  }
  const ReadyTimes& times() const { return times_; }
  uint64_t memory_bytes() const {
    return position_.capacity() * sizeof(uint32_t) + times_.capacity() * sizeof(uint64_t);
  }

 private:
  static constexpr uint32_t kNever = UINT32_MAX;
  std::vector<uint32_t> position_;  // element i is written by the thread that claimed parameter i
  ReadyTimes times_;                // likewise
  uint32_t next_ = 0;               // at least 1 once something is recorded
};

}  // namespace weft
