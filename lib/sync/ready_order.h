// The order in which gradients became ready in the last step that noted it. Part of a reducer's state.
//
// Threads: begin and params by the program's thread between steps; note by any thread, for parameters that it
// has claimed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <vector>

namespace weft {

class ReadyOrder {
 public:
  explicit ReadyOrder(size_t params) : position_(params, kNever) {}

  void begin() {
    std::fill(position_.begin(), position_.end(), kNever);
    next_.store(0, std::memory_order_relaxed);
  }
  void note(uint64_t param) { position_[param] = next_.fetch_add(1, std::memory_order_relaxed); }

  bool noted() const { return next_.load(std::memory_order_relaxed) > 0; }
  // All parameters; those that never became ready come last.
  std::vector<uint32_t> params() const {
    std::vector<uint32_t> out(position_.size());
    std::iota(out.begin(), out.end(), 0u);
    std::stable_sort(out.begin(), out.end(),
                     [&](uint32_t a, uint32_t b) { return position_[a] < position_[b]; });
    return out;
  }
  uint64_t memory_bytes() const { return position_.capacity() * sizeof(uint32_t); }

 private:
  static constexpr uint32_t kNever = UINT32_MAX;
  std::vector<uint32_t> position_;  // element i: whoever claimed i
  std::atomic<uint32_t> next_{0};
};

}  // namespace weft
