// One operation on a lane, from submission to completion.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "transport/collectives.h"

namespace weft {

// The submitter owns the request until it is done. It may be on a stack, in a reducer (reused after reset),
// or reference-counted on the heap behind a handle. Threads: `args` and `deadline` are written before
// submission; `result` is written before done; callbacks under the mutex.
struct Request {
  CollectiveArgs args;
  Deadline deadline = Deadline::never();
  uint64_t slot = kNoSlot;
  uint64_t start_ns = 0;                     // time at which it started to run; 0 if no trace is recorded
  uint64_t step = UINT64_MAX;                // of the reducer that submits it; for traces
  uint32_t bucket = UINT32_MAX;              // of the reducer that submits it; for traces
  Status result;                             // valid once done
  std::optional<uint64_t> moved_bytes = {};  // as CollectiveLane::moved_bytes; valid once done
  Request* next = nullptr;                   // link in the lane's queue
  void (*retire)(Request*) = nullptr;        // called last by the lane, when it is finished with the request
  std::atomic<uint32_t> waiters{0};          // threads of the program that are blocked until it is done

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Completes the request. Called by the lane, once. If retire is null, nothing touches the request
  // afterwards.
  void complete(Status status) {
    result = std::move(status);
    void (*const last)(Request*) = retire;
    done_.store(true, std::memory_order_release);
    if (last != nullptr) last(this);
  }
  void reset() {
    result = Status();
    moved_bytes.reset();
    slot = kNoSlot;
    done_.store(false, std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> done_{false};
};

// Counts the calling thread among the request's waiters.
class Waiter {
 public:
  explicit Waiter(Request& request) : request_(request) {
    request_.waiters.fetch_add(1, std::memory_order_relaxed);
  }
  ~Waiter() { request_.waiters.fetch_sub(1, std::memory_order_relaxed); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  Request& request_;
};

}  // namespace weft
