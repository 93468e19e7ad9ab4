// Whose turn it is to call a hook: one call at a time, whoever makes it. A stage takes the turn if it is free
// and comes back later if not; the program's calls (plans, rebind, save) wait for it, and come before stages.
// Part of Hook.
#pragma once

#include <atomic>

#include "base/clock.h"
#include "base/interrupt.h"

namespace weft {

// Threads: any thread. Sequentially consistent: who gives the turn then looks for stages that found it taken,
// whose worker queues first and then looks at the turn; one of the two sees the other.
class HookTurn {
 public:
  bool try_take() { return wanted_.load() == 0 && !taken_.exchange(true); }
  void give() { taken_.store(false); }

  // False if the deadline passes, or the program interrupts the call: a stage has not returned. A stage that
  // came meanwhile may have left the turn to this one, so the worker is to be told (turn_over) then as well.
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
