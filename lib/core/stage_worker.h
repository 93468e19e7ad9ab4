// Runs hooks' stages beside the engine, so that the drive lock is free while they compute: on a thread that
// starts with the first reducer whose hook has work to do, and on threads that wait for a step and have
// nothing to poll. Calls of one hook never overlap (core/hook_turn.h). `thread` mode only: in `caller` mode
// whoever polls runs stages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/thread.h"
#include "core/engine.h"
#include "core/hook.h"

namespace weft {

// One stage to run. It keeps alive what it touches, for it may return after everybody has given it up.
class StageWork {
 public:
  virtual ~StageWork() = default;
  virtual Hook& hook() = 0;
  virtual Engine& engine() = 0;
  // Never under a lock; the hook's turn is taken.
  virtual void run() = 0;

  // Queued or running. Once it is not, what run() wrote may be read.
  bool out() const { return phase_.load(std::memory_order_acquire) != Phase::kIdle; }
  bool running() const { return phase_.load(std::memory_order_acquire) == Phase::kRunning; }

 protected:
  // Whose it is, and among that one's stages the place: smaller ones first. Set while it is not out.
  const void* owner_ = nullptr;
  uint64_t place_ = 0;

 private:
  friend class StageWorker;
  enum class Phase : uint8_t { kIdle, kQueued, kRunning };
  std::atomic<Phase> phase_{Phase::kIdle};
};

// Threads: any thread.
class StageWorker {
 public:
  StageWorker(std::shared_ptr<Clock> clock, ThreadStart on_start);
  ~StageWorker();
  StageWorker(const StageWorker&) = delete;
  StageWorker& operator=(const StageWorker&) = delete;

  // Idempotent. kSystem: no thread is to be had.
  Status start();
  // No stage begins any more. kTimeout: one has not returned within timeout_ms; it is left to itself.
  Status stop(int64_t timeout_ms);

  void post(std::shared_ptr<StageWork> work);
  // One that has not begun never will.
  void cancel(StageWork& work);
  // A running stage has been given up. Its thread is left to itself, and another one serves the others.
  void set_aside(const StageWork& work);
  // A stage waits and is in a hurry. If one of the program's own hooks has run for so long that it may never
  // return, it is left to its thread, and another one serves the other hooks.
  void relieve();
  // A hook's turn was given back by another than this: stages may have waited for it.
  void turn_over();

  // A thread that waits for the stages of `owner` and runs them itself if there is nothing to poll. Those of
  // the program's own hooks excepted: they may never return.
  class Helper {
   public:
    Helper(StageWorker& worker, const void* owner);
    ~Helper();
    Helper(const Helper&) = delete;
    Helper& operator=(const Helper&) = delete;
    // After a poll. True: call help.
    bool wanted(Poll last);
    // False if there was nothing for this thread.
    bool help();

   private:
    StageWorker& worker_;
    const void* const owner_;
    uint32_t rounds_ = 0;  // polls since there was something that it left to the thread
  };

 private:
  // Outlives this while a stage that was given up runs.
  struct Shared {
    void loop(uint64_t epoch);
    std::shared_ptr<StageWork> take(const void* owner);
    bool leaves_to_helper(const StageWork& work) const;
    void wake();

    std::shared_ptr<Clock> clock;
    std::atomic<uint32_t> wake_word{0};
    std::atomic<bool> sleeping{false};
    std::atomic<uint32_t> queued{0};  // size of queue
    std::mutex mutex;
    std::vector<std::shared_ptr<StageWork>> queue;  // guarded by mutex
    std::vector<const void*> helped;                // guarded by mutex: owners for which somebody waits
    const StageWork* running = nullptr;             // guarded by mutex: on the thread
    const Hook* running_of = nullptr;               // guarded by mutex: its hook; only to compare
    bool foreign = false;                           // guarded by mutex: that is the program's own
    uint64_t running_since_ns = 0;                  // guarded by mutex: of a foreign one
    uint64_t epoch = 0;                             // guarded by mutex: of the thread; others end
    bool stopping = false;                          // guarded by mutex
  };
  static void run(StageWork& work);
  Status start_locked();
  void set_aside_locked();

  const std::shared_ptr<Shared> shared_;
  const ThreadStart on_start_;
  std::thread thread_;  // guarded by shared_->mutex until stopping
};

}  // namespace weft
