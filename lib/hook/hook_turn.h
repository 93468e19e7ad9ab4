// Mutual exclusion of calls of a hook. A stage takes the turn if it is free, and is retried later if not. The
// program's calls (plans, rebind, save) wait for the turn and take precedence over stages. Part of Hook.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "base/interrupt.h"

namespace weft {

// Threads: any thread. Sequentially consistent. A caller that gives the turn back then looks for stages that
// found it taken; the stage worker first queues the stage and then tries the turn. So one of the two always
// sees the other.
class HookTurn {
 public:
  bool try_take() { return wanted_.load() == 0 && !taken_.exchange(true); }
  void give() { taken_.store(false); }

  // Returns false if the deadline passes or the program interrupts the call: a stage has not returned. In
  // both cases the caller must call StageWorker::turn_over, because a stage may have yielded the turn to this
  // call meanwhile.
  bool take(Clock& clock, Deadline deadline) {
    wanted_.fetch_add(1);
    bool got = false;
    for (uint32_t round = 0; !(got = !taken_.exchange(true)); round++) {
      if (deadline.expired(clock) || Interrupt::poll()) break;
      clock.relax(round);
    }
    wanted_.fetch_sub(1);
    return got;
  }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<int> wanted_{0};
};

}  // namespace weft
