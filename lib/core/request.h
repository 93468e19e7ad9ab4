// One operation on a lane, from submission to completion.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "core/collectives.h"

namespace weft {

// The one who submits owns it until it is done; it may live on a stack, in a reducer (and be used again after
// reset), or on the heap behind a handle, counted. Threads: `args`, `deadline` are written before submission;
// `result` before done; callbacks under the mutex.
struct Request {
  CollectiveArgs args;
  Deadline deadline = Deadline::never();
  uint64_t slot = kNoSlot;
  uint64_t start_ns = 0;                     // when it started to run; 0 if nobody records
  Status result;                             // valid once done
  std::optional<uint64_t> moved_bytes = {};  // as CollectiveLane::moved_bytes; valid once done
  Request* next = nullptr;                   // in the lane's queue
  void (*retire)(Request*) =
      nullptr;  // called by the lane when it is finished with the request; the last touch

  bool done() const { return done_.load(std::memory_order_acquire); }
  // By the lane, once. Nothing of the request is touched afterwards if retire is null.
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

}  // namespace weft
