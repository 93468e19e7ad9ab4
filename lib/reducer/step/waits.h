// Tracks the ranks for which a step's collectives wait. It samples from time to time while nothing advances,
// so it costs nothing when no rank is late. Part of Step. Threads: under the engine's progress lock.
//
// A rank sees without communication for which ranks it waits: in shared memory for those that have not
// arrived, over messages for those whose message has not come. Such a rank may itself wait for another one.
// To find out, the ranks exchange their statistics (engine/wait_stats.h).
#pragma once

#include <cstdint>
#include <vector>

#include "comm/lane.h"
#include "engine/wait_stats.h"

namespace weft {

class Waits {
 public:
  Waits(int rank, int ranks) : stats_(rank, ranks), late_(static_cast<size_t>(ranks)) {}

  void clear() {
    since_ns_ = 0;
    stats_.clear();
  }
  // Takes a sample, if the last one is old enough. Called after a poll in which nothing advanced.
  void look(const Lane& lane, uint64_t now_ns) {
    if (since_ns_ != 0 && now_ns - since_ns_ < kEveryNs) return;
    charge(now_ns);
    since_ns_ = now_ns;
    for (size_t r = 0; r < late_.size(); r++) late_[r] = lane.waits_for(static_cast<int>(r));
  }
  // Ends the wait. Called when the collective is over.
  void end(uint64_t now_ns) {
    charge(now_ns);
    since_ns_ = 0;
  }
  WaitStats& stats() { return stats_; }
  uint64_t memory_bytes() const { return stats_.memory_bytes() + late_.capacity() / 8; }

 private:
  static constexpr uint64_t kEveryNs = 10'000;

  void charge(uint64_t now_ns) {
    if (since_ns_ != 0) stats_.waited(late_, now_ns - since_ns_);
  }

  WaitStats stats_;
  std::vector<bool> late_;  // per rank, at the last sample
  uint64_t since_ns_ = 0;   // time of the last sample; 0: nothing is waited for
};

}  // namespace weft
