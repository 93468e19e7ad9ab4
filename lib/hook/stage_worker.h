// Runs hook stages outside the progress lock. They run on a thread that starts with the first reducer whose
// hook has work to do, and on threads that wait for a step and have nothing to poll. Calls of one hook never
// overlap (hook/hook_turn.h). `thread` mode only: in `caller` mode the polling thread runs stages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "hook/hook.h"

namespace weft {

// One stage to run. It keeps everything that it touches alive, because it may return after the reducer has
// abandoned it.
class StageWork {
 public:
  virtual ~StageWork() = default;
  virtual Hook& hook() = 0;
  virtual Engine& engine() = 0;
  // Runs the stage. Called without locks, with the hook's turn taken.
  virtual void run() = 0;

  // Returns true while the stage is queued or running. Afterwards the results of run() may be read.
  bool out() const { return phase_.load(std::memory_order_acquire) != Phase::kIdle; }
  bool running() const { return phase_.load(std::memory_order_acquire) == Phase::kRunning; }

 protected:
  // The owner of the stage, and its position among the owner's stages: lower ones run first. Set while the
  // stage is not out.
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

  // Starts the thread. Idempotent. kSystem: the thread could not be created.
  Status start();
  // Stops: no further stage begins. kTimeout: a stage has not returned within timeout_ms; its thread is
  // detached.
  Status stop(int64_t timeout_ms);

  void post(std::shared_ptr<StageWork> work);
  // Cancels a stage that has not begun.
  void cancel(StageWork& work);
  // Abandons a running stage: its thread is detached, and a new thread serves the other stages.
  void set_aside(const StageWork& work);
  // Called when an urgent stage is waiting. If a stage of a user hook has run for so long that it may never
  // return, its thread is detached, and a new thread serves the other hooks.
  void relieve();
  // Reports that another caller has released a hook's turn, for which stages may have waited.
  void turn_over();

  // A thread that waits for the stages of `owner` and runs them itself when there is nothing to poll. It runs
  // no stages of user hooks, which may never return.
  class Helper {
   public:
    Helper(StageWorker& worker, const void* owner);
    ~Helper();
    Helper(const Helper&) = delete;
    Helper& operator=(const Helper&) = delete;
    // Called after a poll. True if the caller should call help().
    bool wanted(Poll last);
    // Runs a stage. Returns false if there was none for this thread.
    bool help();

   private:
    StageWorker& worker_;
    const void* const owner_;
    uint32_t rounds_ = 0;  // polls since there was a stage that it left to the worker thread
  };

 private:
  // Outlives this object while an abandoned stage runs.
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
    std::vector<const void*> helped;                // guarded by mutex: owners that a helper waits for
    const StageWork* running = nullptr;             // guarded by mutex: the stage on the worker thread
    const Hook* running_of = nullptr;               // guarded by mutex: its hook; only compared
    bool foreign = false;                           // guarded by mutex: the running stage is of a user hook
    uint64_t running_since_ns = 0;                  // guarded by mutex: for a user hook
    // Epoch of the current thread; threads of older epochs end. Guarded by mutex.
    uint64_t epoch = 0;
    bool stopping = false;  // guarded by mutex
  };
  static void run(StageWork& work);
  Status start_locked();
  void set_aside_locked();

  const std::shared_ptr<Shared> shared_;
  const ThreadStart on_start_;
  std::thread thread_;  // guarded by shared_->mutex until stopping
};

}  // namespace weft
