// The statistics of a reducer's steps, and its last error.
//
// Threads: any thread; steps() is for the program's thread, which alone changes the number of steps.
#pragma once

#include <weft/weft.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "base/status.h"
#include "reducer/history.h"

namespace weft {

class Statistics {
 public:
  struct Values {
    weft_reducer_stats stats{};
    History history;
    Status last_error;
    // Why automatic re-planning kept the buckets (weft_reducer_options.replan); empty: it did not.
    std::string plan_kept;
    bool warned_of_error_memory = false;
    uint64_t retries = 0;      // steps that a retry has completed
    uint64_t other_bytes = 0;  // on the heap, as of the last plan
  };

  // Calls work(values) with the mutex held.
  template <class Work>
  auto locked(Work&& work) {
    const std::lock_guard lock(mutex_);
    return work(values_);
  }
  template <class Work>
  auto locked(Work&& work) const {
    const std::lock_guard lock(mutex_);
    return work(values_);
  }
  // Remembers an error, and returns it.
  Status note(Status error) {
    return locked([&](Values& values) { return values.last_error = std::move(error); });
  }
  Status last_error() const {
    return locked([](const Values& values) { return values.last_error; });
  }
  // Returns the number of synchronised steps that were reduced. The next one has this number.
  uint64_t steps() const { return values_.stats.steps; }
  // Counts a gradient with another layout than its parameter. Returns how many there were before.
  uint64_t count_copied() { return copied_gradients_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t copied_gradients() const { return copied_gradients_.load(std::memory_order_relaxed); }

 private:
  mutable std::mutex mutex_;
  Values values_;
  std::atomic<uint64_t> copied_gradients_{0};
};

}  // namespace weft
