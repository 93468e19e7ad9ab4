// The first failure of a communicator, which is final. Threads: any thread.
#pragma once

#include <atomic>
#include <mutex>

#include "base/status.h"

namespace weft {

class FirstFailure {
 public:
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Returns the failure; ok if there is none.
  Status status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  // Keeps the failure and returns true, unless there is one already. Calls before() in between, before
  // another thread can see the failure.
  template <class Before>
  bool set(const Status& status, Before&& before) {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return false;
    status_ = status;
    before();
    failed_.store(true, std::memory_order_release);
    return true;
  }

 private:
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  Status status_;  // guarded by mutex_
};

}  // namespace weft
