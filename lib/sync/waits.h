// For whom a step's collectives wait: looked at now and then while nothing advances, so it costs nothing
// where nobody is late. Part of Step. Threads: under the engine's drive lock.
//
// What a rank can know without asking: in shared memory who has not come; over messages whose message is
// awaited, and that rank may itself wait for another, as they tell each other (core/wait_notes.h).
#pragma once

#include <cstdint>
#include <vector>

#include "core/lane.h"
#include "core/wait_notes.h"

namespace weft {

class Waits {
 public:
  Waits(int rank, int ranks) : notes_(rank, ranks), late_(static_cast<size_t>(ranks)) {}

  void clear() {
    since_ns_ = 0;
    notes_.clear();
  }
  // A poll in which nothing advanced.
  void look(const Lane& lane, uint64_t now_ns) {
    if (since_ns_ != 0 && now_ns - since_ns_ < kEveryNs) return;
    charge(now_ns);
    since_ns_ = now_ns;
    for (size_t r = 0; r < late_.size(); r++) late_[r] = lane.waits_for(static_cast<int>(r));
  }
  // The collective is over.
  void end(uint64_t now_ns) {
    charge(now_ns);
    since_ns_ = 0;
  }
  WaitNotes& notes() { return notes_; }
  uint64_t memory_bytes() const { return notes_.memory_bytes() + late_.capacity() / 8; }

 private:
  static constexpr uint64_t kEveryNs = 10'000;

  void charge(uint64_t now_ns) {
    if (since_ns_ != 0) notes_.waited(late_, now_ns - since_ns_);
  }

  WaitNotes notes_;
  std::vector<bool> late_;  // at the last look
  uint64_t since_ns_ = 0;   // of the last look; 0: nothing is waited for
};

}  // namespace weft
