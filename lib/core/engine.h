// The progress engine: polls everything that is under way in a context. In `thread` mode a thread of its own
// does so while nobody else does; whoever waits helps, by polling itself. In `caller` mode only waiters and
// tests poll.
//
// The drive lock: held by whoever polls. Everything that tasks touch is guarded by it, so lanes, backends and
// the reducer's progress need no locks of their own. It is never held while waiting, and never while user
// code runs, hooks' stages in `caller` mode excepted.
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
#include "core/collectives.h"

namespace weft {

// Something that advances when polled: a lane, a reducer's step.
class Task {
 public:
  virtual ~Task() = default;
  // With the drive lock held. Returns after a bounded amount of work. kParked also when it advanced and has
  // nothing left; kFinished: the engine drops it.
  virtual Poll poll() = 0;
  // poll() has thrown, because there is no memory most likely: what the task is a part of fails. It is polled
  // again. With the drive lock held.
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
  // End the thread. Tasks stay registered and can still be driven by waiters.
  void stop();

  void add(std::shared_ptr<Task> task);
  // On return the task is not being polled and never will be. Not from poll().
  void remove(const Task* task);

  // Something happened that a parked task may be waiting for. Cheap when the thread is awake.
  void notify();

  // Poll one task, with the drive lock held. What it throws is its failure, and no one else's.
  static Poll poll(Task& task) noexcept {
    Poll polled = Poll::kAdvanced;
    const Status thrown = guarded_run([&] { polled = task.poll(); });
    if (!thrown.ok()) [[unlikely]]
      task.fail(thrown);
    return polled;
  }

  // Poll every task once, unless somebody else is doing so: then *driven is false and the result kParked.
  Poll drive(bool* driven);

  // A thread of the program has been waiting in one of the calls below for more than a moment.
  bool waited_on() const { return waiters_.load(std::memory_order_relaxed) > 0; }

  // Drive until done(), the deadline, or an interrupt of the program (Interrupt::requested() then tells it
  // from the deadline); returns done(). done() is called without the drive lock.
  template <class Done>
  bool wait(Done&& done, Deadline deadline) {
    Idle idle;
    return poll_until<true>(done, deadline, idle);
  }

  // The same, and do helper's work meanwhile (StageWorker::Helper): help() when it is wanted(last poll).
  template <class Done, class Helper>
  bool wait(Done&& done, Deadline deadline, Helper& helper) {
    return poll_until<true>(done, deadline, helper);
  }

  // wait() that no interrupt ends: for what must be over before its memory is left, within a time that the
  // library itself bounds.
  template <class Done>
  bool settle(Done&& done, Deadline deadline) {
    Idle idle;
    return poll_until<false>(done, deadline, idle);
  }

  // Run `work` with the drive lock held: for changes to what tasks share.
  template <class Work>
  auto locked(Work&& work) {
    const Hold hold(*this, std::unique_lock(drive_mutex_));
    return work();
  }

  // The same, unless somebody else holds it: then false. Otherwise what `work` returns.
  template <class Work>
  bool try_locked(Work&& work) {
    const Hold hold(*this, std::unique_lock(drive_mutex_, std::try_to_lock));
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
    uint32_t looks = 0;
    bool helping = false;
    bool in_time = true;
    const Leaving leaving{*this, helping, last};
    for (uint32_t round = 0; !done(); round++) {
      bool driven = false;
      last = drive(&driven);
      if (!driven) last = Poll::kWaiting;  // who drives may have more to do, and may stop because we wait
      if (done()) break;
      if (driven && helper.wanted(last)) {
        leave_wait(std::exchange(helping, false), last);  // the thread polls meanwhile
        if (helper.help()) {
          last = Poll::kWaiting;  // what came of it is to be polled
          round = 0;
          continue;
        }
      }
      // Rounds that advance count as well: those of a large operation may all do.
      if (kInterruptible && (++looks % 64 == 0 || round > 4096) && Interrupt::due()) {
        leave_wait(std::exchange(helping, false), Poll::kWaiting);  // the program's code may take its time
        last = Poll::kWaiting;
        if (Interrupt::poll()) {
          in_time = done();
          break;
        }
      }
      if (driven && last == Poll::kAdvanced) {
        round = 0;
        continue;
      }
      // Short operations end before the thread need be kept away.
      if (round >= kShortRounds && !helping) {
        helping = true;
        waiters_.fetch_add(1);
        last = Poll::kWaiting;  // from now on the thread leaves to us what came since that poll
      }
      // The clock is read now and then while spinning, and at every round once rounds take longer.
      if ((round % 64 == 63 || round > 4096 || deadline.ns() == 0) && deadline.expired(clock_)) {
        in_time = done();
        break;
      }
      clock_.relax(round);
    }
    return in_time;
  }

  // The drive lock, taken for something else than a round over the tasks: the thread, if it found it taken
  // meanwhile and sleeps, is woken at the end.
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
  // Poll in the thread, unless somebody else holds the drive lock: they then wake it, or hand over.
  Poll drive_or_miss();
  // Whether a waiter drives in place of the thread; what the thread's last poll left over is then its to hand
  // back when it goes.
  bool yields_to_waiters(Poll last);
  // A waiter stops driving: if anything is left to do, the thread takes over.
  void leave_wait(bool helping, Poll last) {
    if (helping) waiters_.fetch_sub(1);
    if (mode_ == Mode::kCaller) return;
    if (last != Poll::kParked || (helping && held_back_.exchange(false))) notify();
  }

  // The end of a wait, also where done() or the helper's work throws.
  struct Leaving {
    Engine& engine;
    const bool& helping;
    const Poll& last;
    ~Leaving() { engine.leave_wait(helping, last); }
  };

  static constexpr uint32_t kShortRounds = 16;

  Clock& clock_;
  const Mode mode_;
  std::mutex drive_mutex_;
  std::vector<std::shared_ptr<Task>> tasks_;  // guarded by drive_mutex_
  std::atomic<uint32_t> wake_{0};             // what the thread sleeps on
  std::atomic<bool> sleeping_{false};
  std::atomic<int> waiters_{0};         // threads that drive while they wait: the engine's own then sleeps
  std::atomic<bool> held_back_{false};  // a notification was left to the waiters
  std::atomic<bool> missed_{false};  // since a round over the tasks began the thread has found the lock taken
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace weft
