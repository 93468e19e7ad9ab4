// The partners of algorithms by recursive halving and doubling. The ranks of a power of two exchange with
// partners; each rank beyond it sends its input to one of them and receives the result.
#pragma once

#include <bit>

#include "coll/algorithm.h"

namespace weft::coll {

// Maps ranks to a power of two. Pairs (0, 1), (2, 3) ... of the first ranks act as one rank each, until the
// number fits. So partial results always belong to neighbouring ranks.
class Partners {
 public:
  Partners(int rank, int size)
      : rank_(rank),
        size_(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))),
        paired_(2 * (size - size_)) {}

  int size() const { return size_; }
  // True if this rank and its neighbour act as one rank. The even rank acts and the odd one waits.
  bool paired() const { return rank_ < paired_; }
  bool waits() const { return paired() && rank_ % 2 == 1; }
  int mate() const { return rank_ ^ 1; }
  int index() const { return paired() ? rank_ / 2 : rank_ - paired_ / 2; }
  int rank_of(int index) const { return index < paired_ / 2 ? 2 * index : index + paired_ / 2; }
  // Returns the number of ranks for which the first `index` partners act; these are the lowest ranks.
  int ranks_below(int index) const { return index <= paired_ / 2 ? 2 * index : index + paired_ / 2; }

 private:
  int rank_;
  int size_;
  int paired_;
};

// Sends the result of an all_reduce to the waiting rank of each pair.
inline void send_to_mate(const Shape& shape, Schedule& schedule, const Partners& partners, uint32_t step) {
  if (!partners.paired()) return;
  if (partners.waits()) {
    schedule.receive(partners.mate(), step, target(), shape.bytes());
  } else {
    schedule.send(partners.mate(), step, target(), shape.bytes());
  }
  schedule.end_round();
}

}  // namespace weft::coll
