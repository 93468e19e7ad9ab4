// The progress engine of a context: polls all tasks that are under way. In `thread` mode the engine's
// progress thread polls while no other thread does; threads that wait for an operation also poll. In `caller`
// mode only waiting threads and tests poll.
//
// The progress lock (progress_mutex_): the thread that polls holds it. It guards everything that tasks touch,
// so lanes, backends and reducers need no locks for their progress. No thread holds it while it waits. User
// code never runs under it, except weft_reduction.combine, and hook stages in `caller` mode.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/guard.h"
#include "base/interrupt.h"
#include "base/thread.h"
#include "transport/collectives.h"

namespace weft {

// A unit of work that advances when polled: a lane, a reducer's step.
class Task {
 public:
  virtual ~Task() = default;
  // Advances by a bounded amount of work. Called with the progress lock held. Returns kParked also if it
  // advanced and has nothing left to do. On kFinished the engine drops the task.
  virtual Poll poll() = 0;
  // Called with the progress lock held after poll() threw, most likely because memory ran out. Fails the
  // operation or step that the task belongs to. The engine continues to poll the task.
  virtual void fail(const Status& why) noexcept = 0;
};

// Threads: any thread.
class Engine {
 public:
  enum class Mode { kThread, kCaller };

  Engine(Clock& clock, Mode mode) : clock_(clock), mode_(mode) {}
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Status start(const ThreadStart& on_start);
  // Ends the progress thread. Tasks stay registered, and waiting threads can still poll them.
  void stop();

  void add(std::shared_ptr<Task> task);
  // Removes a task. On return the task is not being polled and will not be polled again. Must not be called
  // from poll().
  void remove(const Task* task);

  // Reports an event that a parked task may be waiting for. Cheap when the progress thread is awake.
  void notify();

  // Polls one task, with the progress lock held. An exception fails this task only.
  static Poll poll(Task& task) noexcept {
    Poll polled = Poll::kAdvanced;
    const Status thrown = guarded_run([&] { polled = task.poll(); });
    if (!thrown.ok()) [[unlikely]]
      task.fail(thrown);
    return polled;
  }

  // Polls every task once. If another thread is polling, sets *had_lock to false and returns kParked.
  Poll poll_tasks(bool* had_lock);

  // True while a thread of the program has been waiting in one of the calls below for more than a moment.
  bool waited_on() const { return waiters_.load(std::memory_order_relaxed) > 0; }

  // Polls until done() is true, the deadline passes, or the program interrupts the call; returns done().
  // Interrupt::requested() tells an interrupt from a passed deadline. Calls done() without the progress lock.
  template <class Done>
  bool wait(Done&& done, Deadline deadline) {
    Idle idle;
    return poll_until<true>(done, deadline, idle);
  }

  // Does the same, and calls helper.help() between polls when helper.wanted(last poll) is true
  // (StageWorker::Helper).
  template <class Done, class Helper>
  bool wait(Done&& done, Deadline deadline, Helper& helper) {
    return poll_until<true>(done, deadline, helper);
  }

  // Waits as wait() does, but no interrupt ends it. For operations that must end before their memory is
  // released, and whose duration the library bounds.
  template <class Done>
  bool settle(Done&& done, Deadline deadline) {
    Idle idle;
    return poll_until<false>(done, deadline, idle);
  }

  // Runs `work` with the progress lock held: for changes to state that tasks share.
  template <class Work>
  auto locked(Work&& work) {
    const Hold hold(*this, std::unique_lock(progress_mutex_));
    return work();
  }

  // Does what locked() does, but returns false if another thread holds the lock. Otherwise returns the result
  // of `work`.
  template <class Work>
  bool try_locked(Work&& work) {
    const Hold hold(*this, std::unique_lock(progress_mutex_, std::try_to_lock));
    return hold.owns() && work();
  }

  Clock& clock() { return clock_; }
  Mode mode() const { return mode_; }

 private:
  struct Idle {
    bool wanted(Poll /*last*/) { return false; }
    bool help() { return false; }
  };

  template <bool kInterruptible, class Done, class Helper>
  bool poll_until(Done&& done, Deadline deadline, Helper& helper) {
    Poll last = Poll::kParked;
    uint32_t polls = 0;
    bool helping = false;
    bool in_time = true;
    const Leaving leaving{*this, helping, last};
    for (uint32_t round = 0; !done(); round++) {
      bool had_lock = false;
      last = poll_tasks(&had_lock);
      // The thread that polls may have more to do, and may stop because this one waits.
      if (!had_lock) last = Poll::kWaiting;
      if (done()) break;
      if (had_lock && helper.wanted(last)) {
        leave_wait(std::exchange(helping, false), last);  // the progress thread polls meanwhile
        if (helper.help()) {
          last = Poll::kWaiting;  // the results of help() need a poll
          round = 0;
          continue;
        }
      }
      // Rounds that advance count as well: in a large operation every round may advance.
      if (kInterruptible && (++polls % 64 == 0 || round > 4096) && Interrupt::due()) {
        // The program's interrupt callback may take long.
        leave_wait(std::exchange(helping, false), Poll::kWaiting);
        last = Poll::kWaiting;
        if (Interrupt::poll()) {
          in_time = done();
          break;
        }
      }
      if (had_lock && last == Poll::kAdvanced) {
        round = 0;
        continue;
      }
      // Short operations end before the progress thread has to be kept asleep.
      if (round >= kShortRounds && !helping) {
        helping = true;
        waiters_.fetch_add(1);
        // From now on the progress thread leaves work that arrived since the last poll to this thread.
        last = Poll::kWaiting;
      }
      // Reads the clock every 64 rounds while spinning, and every round after 4096 rounds, which take longer.
      if ((round % 64 == 63 || round > 4096 || deadline.ns() == 0) && deadline.expired(clock_)) {
        in_time = done();
        break;
      }
      clock_.relax(round);
    }
    return in_time;
  }

  // Holds the progress lock for anything other than a round over the tasks. If the progress thread found the
  // lock taken meanwhile and went to sleep, the destructor wakes it.
  class Hold {
   public:
    Hold(Engine& engine, std::unique_lock<std::mutex> lock) : engine_(engine), lock_(std::move(lock)) {}
    ~Hold() {
      if (!owns()) return;
      lock_.unlock();
      if (engine_.missed_.load()) engine_.notify();
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    bool owns() const { return lock_.owns_lock(); }

   private:
    Engine& engine_;
    std::unique_lock<std::mutex> lock_;
  };

  void run();
  // Sleeps on the progress thread until wake_ differs from `seen` or until_ns has passed.
  void sleep(uint32_t seen, uint64_t until_ns);
  // Polls on the progress thread, unless another thread holds the progress lock. That thread then wakes the
  // progress thread or hands over.
  Poll poll_tasks_or_miss();
  // Returns true if a waiting thread polls instead of the progress thread. Work left over by the progress
  // thread's last poll is then handed back by the last waiter.
  bool yields_to_waiters(Poll last);
  // Ends a waiter's polling. If work is left, the progress thread takes over.
  void leave_wait(bool helping, Poll last) {
    if (helping) waiters_.fetch_sub(1);
    if (mode_ == Mode::kCaller) return;
    // Also where work is left anyway: this thread then sees, and passes on, what was notified.
    const bool held_back = helping && held_back_.exchange(false);
    if (last != Poll::kParked || held_back) notify();
  }

  // Calls leave_wait() at the end of a wait, also if done() or the helper throws.
  struct Leaving {
    Engine& engine;
    const bool& helping;
    const Poll& last;
    ~Leaving() { engine.leave_wait(helping, last); }
  };

  static constexpr uint32_t kShortRounds = 16;

  Clock& clock_;
  const Mode mode_;
  std::mutex progress_mutex_;
  std::vector<std::shared_ptr<Task>> tasks_;  // guarded by progress_mutex_
  std::atomic<uint32_t> wake_{0};             // the futex word that the progress thread sleeps on
  std::atomic<bool> sleeping_{false};
  std::atomic<int> waiters_{0};         // threads that poll while they wait; the progress thread then sleeps
  std::atomic<bool> held_back_{false};  // a notification was left to the waiters
  // Set when the progress thread has found the lock taken since the last round over the tasks began.
  std::atomic<bool> missed_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace weft
