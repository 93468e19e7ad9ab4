// When a mesh's control thread gives signs of life and when it misses those of others. The arithmetic alone:
// mesh_core.cpp has the sockets. Threads: the control thread.
//
// A sign of life goes out every fifth of the budget, so a few may be late or lost before a rank is condemned.
// Time in which this thread did not run (its process was stopped, its core taken) is nobody's silence: what
// the others said meanwhile lies unread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/config.h"

namespace weft {

class Heartbeat {
 public:
  static constexpr int64_t kLeastMs = kLeastHeartbeatMs;
  static constexpr int64_t kMostMs = int64_t{1} << 40;  // more is never
  static constexpr uint64_t kBeats = 5;                 // signs of life in a budget

  // budget_ms: what a rank may be silent; negative: for ever, and then none of this happens.
  explicit Heartbeat(int64_t budget_ms)
      : budget_ns_(budget_ms < 0 || budget_ms > kMostMs ? 0 : static_cast<uint64_t>(budget_ms) * 1'000'000u) {
  }

  bool on() const { return budget_ns_ != 0; }
  uint64_t budget_ns() const { return budget_ns_; }

  // When the next sign of life is due.
  Deadline next() const { return on() ? Deadline::at(next_ns_) : Deadline::never(); }
  // Whether one is due now, and then the next one is planned.
  bool beat(uint64_t now_ns) {
    if (!on() || now_ns < next_ns_) return false;
    next_ns_ = now_ns + budget_ns_ / kBeats;
    return true;
  }

  // How much of the time up to now this thread did not run, which meant to look at `planned`. A moment's
  // delay counts as none.
  uint64_t own_pause_ns(Deadline planned, uint64_t now_ns) const {
    if (!on() || now_ns <= planned.ns() || now_ns - planned.ns() <= budget_ns_ / kBeats) return 0;
    return now_ns - planned.ns();
  }

  // A peer was heard last at heard_ns: the same after a pause of our own, when it is to be missed, and
  // whether it is missed.
  static uint64_t forgive(uint64_t heard_ns, uint64_t pause_ns, uint64_t now_ns) {
    return std::min(now_ns, heard_ns + pause_ns);
  }
  Deadline missed_at(uint64_t heard_ns) const {
    return on() ? Deadline::at(heard_ns + budget_ns_) : Deadline::never();
  }
  bool missed(uint64_t heard_ns, uint64_t now_ns) const { return on() && now_ns >= heard_ns + budget_ns_; }

 private:
  const uint64_t budget_ns_;  // 0: off
  uint64_t next_ns_ = 0;      // the first one at once
};

}  // namespace weft
