// Where stages of a hook that complete later meet their completions: the reducer opens an entry before a
// stage, whoever holds the stage's token completes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace weft {

class Engine;

// One bucket's side of a stage under way. Owned by the reducer, which polls it.
class StageWaiter {
 public:
  explicit StageWaiter(Engine& engine) : engine_(engine) {}
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Valid once done.
  const Status& result() const { return result_; }

 private:
  friend class StageGate;
  Engine& engine_;  // is told
  Status result_;
  std::atomic<bool> done_{false};
};

// Threads: any thread.
class StageGate {
 public:
  // A generation for the token of a stage that is about to run. The waiter is not done from here on, until
  // complete() is called for that generation.
  uint64_t open(StageWaiter* waiter);
  // The stage completed in its call, or is given up: on return the waiter is not touched any more.
  void close(uint64_t generation);
  // False, and nothing happens, for a generation that is not open: late, repeated or never given.
  bool complete(uint64_t generation, Status result);

 private:
  struct Entry {
    uint64_t generation;
    StageWaiter* waiter;
  };
  std::mutex mutex_;
  std::vector<Entry> open_;  // guarded by mutex_; as many as stages are under way
  uint64_t last_ = 0;        // guarded by mutex_
};

}  // namespace weft
