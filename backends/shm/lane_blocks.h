// The blocks of all ranks in one lane, each in its rank's segment. Their counters show how many rounds of the
// running operation each rank has done. Publishes this rank's counters, and remembers what it has read of the
// others', so that it reads a counter only until the counter is high enough. Threads: needs the progress
// lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "group.h"
#include "layout.h"

namespace weft::shm {

class LaneBlocks {
 public:
  enum Stage { kProduced, kReduced, kConsumed };

  // group outlives it.
  LaneBlocks(const Group& group, uint32_t lane);

  LaneBlock& of(int rank) const { return *blocks_[static_cast<size_t>(rank)]; }

  // Publishes that this rank has done the first `rounds` rounds of a stage.
  void publish(Stage stage, uint64_t slot, uint64_t rounds) {
    counter(of(rank_), stage).value.store(phase(slot, rounds), std::memory_order_release);
  }
  // Returns true if a rank has published that it has done the first `rounds` rounds of a stage.
  bool reached(int rank, Stage stage, uint64_t slot, uint64_t rounds) {
    uint64_t& seen = seen_[stage][static_cast<size_t>(rank)];
    const uint64_t goal = phase(slot, rounds);
    if (shm::reached(seen, goal)) return true;
    seen = counter(of(rank), stage).value.load(std::memory_order_acquire);
    return shm::reached(seen, goal);
  }
  // Records that a rank has done the first `rounds` rounds of a stage, which its post has said.
  void assume(int rank, Stage stage, uint64_t slot, uint64_t rounds) {
    seen_[stage][static_cast<size_t>(rank)] = phase(slot, rounds);
  }
  // Returns a rank's published value of a stage, for reached() of layout.h.
  uint64_t published(int rank, Stage stage) const {
    return counter(of(rank), stage).value.load(std::memory_order_acquire);
  }
  // Moves all counters of this rank up to the operation that begins: none of its rounds is done, and all
  // earlier rounds are. Without this, counters that no operation moves would eventually leave reached()'s
  // range.
  void catch_up(uint64_t slot);
  // Returns the sum over all stages of the rounds that a rank has done, at most `most` in each.
  uint64_t rounds_done(int rank, uint64_t slot, uint64_t most) const;

 private:
  static Counter& counter(LaneBlock& block, Stage stage) {
    return stage == kProduced ? block.produced : stage == kReduced ? block.reduced : block.consumed;
  }

  const int rank_;
  std::vector<LaneBlock*> blocks_;             // by rank
  std::array<std::vector<uint64_t>, 3> seen_;  // by stage and rank: the last value read
};

}  // namespace weft::shm
