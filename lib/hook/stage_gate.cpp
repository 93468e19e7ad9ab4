#include "hook/stage_gate.h"

#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace weft {

void StageGate::skip_to(uint64_t generation) {
  const std::lock_guard lock(mutex_);
  last_ = std::max(last_, generation);
}

uint64_t StageGate::open(StageWaiter* waiter) {
  waiter->result_ = Status();
  waiter->done_.store(false, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  open_.push_back({++last_, waiter});
  return last_;
}

void StageGate::close(uint64_t generation) {
  const std::lock_guard lock(mutex_);
  std::erase_if(open_, [&](const Entry& e) { return e.generation == generation; });
}

bool StageGate::complete(uint64_t generation, Status result) {
  // The lock is held to the end: close() must not return while the waiter is being written.
  const std::lock_guard lock(mutex_);
  const auto it =
      std::find_if(open_.begin(), open_.end(), [&](const Entry& e) { return e.generation == generation; });
  if (it == open_.end()) return false;
  StageWaiter* const waiter = it->waiter;
  open_.erase(it);
  waiter->result_ = std::move(result);
  waiter->done_.store(true, std::memory_order_release);
  waiter->engine_.notify();
  return true;
}

}  // namespace weft
