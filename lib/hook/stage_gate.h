// Matches hook stages that complete later with their completions. The reducer opens an entry before a stage;
// the holder of the stage's token completes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace weft {

class Engine;

// A bucket's view of a running stage. Owned by the reducer, which polls it.
class StageWaiter {
 public:
  explicit StageWaiter(Engine& engine) : engine_(engine) {}
  bool done() const { return done_.load(std::memory_order_acquire); }
  // Returns the result of the stage; valid once done.
  const Status& result() const { return result_; }

 private:
  friend class StageGate;
  Engine& engine_;  // notified on completion
  Status result_;
  std::atomic<bool> done_{false};
};

// Threads: any thread.
class StageGate {
 public:
  // Lets the generations continue behind `generation`, if they are not that far.
  void skip_to(uint64_t generation);
  // Returns the generation for the token of a stage that is about to run. From here on the waiter is not
  // done, until complete() is called for that generation.
  uint64_t open(StageWaiter* waiter);
  // Closes an entry: the stage completed in its call, or is abandoned. On return the waiter is not touched
  // any more.
  void close(uint64_t generation);
  // Completes a stage. Returns false, without effect, if the generation is not open: late, repeated or
  // invalid.
  bool complete(uint64_t generation, Status result);

 private:
  struct Entry {
    uint64_t generation;
    StageWaiter* waiter;
  };
  std::mutex mutex_;
  std::vector<Entry> open_;  // guarded by mutex_; one per running stage
  uint64_t last_ = 0;        // guarded by mutex_
};

}  // namespace weft
