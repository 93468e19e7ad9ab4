// The heartbeat arithmetic of a mesh: when its control thread sends heartbeats, and when it declares a peer
// failed. The sockets are in mesh_core.cpp. Threads: the control thread.
//
// Heartbeats are sent at every fifth of the timeout, so that a few may be late or lost before a rank counts
// as failed. Time in which this thread did not run (its process was stopped, its core was busy) does not
// count as a peer's silence, because the heartbeats received meanwhile are unread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "environment/config.h"

namespace weft {

class Heartbeat {
 public:
  static constexpr int64_t kLeastMs = kLeastHeartbeatMs;
  static constexpr int64_t kMostMs = int64_t{1} << 40;  // larger timeouts disable heartbeats
  static constexpr uint64_t kBeats = 5;                 // heartbeats per timeout

  // budget_ms: the heartbeat timeout; negative: heartbeats are disabled.
  explicit Heartbeat(int64_t budget_ms)
      : budget_ns_(budget_ms < 0 || budget_ms > kMostMs ? 0 : static_cast<uint64_t>(budget_ms) * 1'000'000u) {
  }

  bool on() const { return budget_ns_ != 0; }
  uint64_t budget_ns() const { return budget_ns_; }

  // Returns when the next heartbeat is due.
  Deadline next() const { return on() ? Deadline::at(next_ns_) : Deadline::never(); }
  // Returns true if a heartbeat is due now, and then schedules the next one.
  bool beat(uint64_t now_ns) {
    if (!on() || now_ns < next_ns_) return false;
    next_ns_ = now_ns + budget_ns_ / kBeats;
    return true;
  }

  // Returns the time for which this thread did not run, if it meant to poll at `planned`. Short delays count
  // as zero.
  uint64_t own_pause_ns(Deadline planned, uint64_t now_ns) const {
    if (!on() || now_ns <= planned.ns() || now_ns - planned.ns() <= budget_ns_ / kBeats) return 0;
    return now_ns - planned.ns();
  }

  // forgive adds a pause of this thread to the time at which a peer was last heard. missed_at and missed
  // return when a peer counts as failed, and whether it does.
  static uint64_t forgive(uint64_t heard_ns, uint64_t pause_ns, uint64_t now_ns) {
    return std::min(now_ns, heard_ns + pause_ns);
  }
  Deadline missed_at(uint64_t heard_ns) const {
    return on() ? Deadline::at(heard_ns + budget_ns_) : Deadline::never();
  }
  bool missed(uint64_t heard_ns, uint64_t now_ns) const { return on() && now_ns >= heard_ns + budget_ns_; }

 private:
  const uint64_t budget_ns_;  // 0: off
  uint64_t next_ns_ = 0;      // the first heartbeat is due immediately
};

}  // namespace weft
