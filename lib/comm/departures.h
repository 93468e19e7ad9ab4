// The ranks of a communicator that take part in no further operation. Threads: any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace weft {

class Departures {
 public:
  explicit Departures(int size)
      : departed_(std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(size))),
        gone_(std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(size))) {}

  // Returns true if the rank takes part in no further operation. Its process may still be alive.
  bool departed(int rank) const {
    return departed_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
  }
  // Returns true if any rank has departed.
  bool any() const { return any_.load(std::memory_order_acquire); }
  // Returns true if the rank's process has ended or has left: it does nothing any more.
  bool gone(int rank) const { return gone_[static_cast<size_t>(rank)].load(std::memory_order_acquire); }

  void set_departed(int rank) {
    departed_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
    any_.store(true, std::memory_order_release);
  }
  void set_gone(int rank) { gone_[static_cast<size_t>(rank)].store(true, std::memory_order_release); }

 private:
  const std::unique_ptr<std::atomic<bool>[]> departed_, gone_;  // by rank
  std::atomic<bool> any_{false};
};

}  // namespace weft
