// Helpers of the algorithms that add partial results. The ranks of a power of two exchange with partners;
// each rank beyond it sends its input to one of them and receives the result.
#pragma once

#include "coll/algorithm.h"

namespace weft::coll {

// Returns the largest power of two that is at most n.
inline int power_below(int n) {
  int power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

// Maps ranks to a power of two. Pairs (0, 1), (2, 3) ... of the first ranks act as one rank each, until the
// number fits. So the parts that are combined always belong to neighbouring ranks, the lower ones first.
class Partners {
 public:
  Partners(int rank, int size)
      : rank_(rank), size_(power_below(size)), paired_(2 * (size - power_below(size))) {}

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

// Begins the partial result in the target with this rank's vector. In a pair the waiting rank sends its
// vector to the acting rank, which adds it. Messages have step number 0.
inline void begin_partners(const Shape& shape, Schedule& schedule, const Partners& partners, Ref room) {
  if (partners.waits()) {
    schedule.send(partners.mate(), 0, source(), shape.bytes());
    return schedule.end_round();
  }
  if (partners.paired()) schedule.receive(partners.mate(), 0, room, shape.bytes());
  schedule.begin(source(), target(), shape.count);
  if (partners.paired()) {
    schedule.begin(room, room, shape.count);
    schedule.combine(target(), room, target(), shape.count);
  }
  schedule.end_round();
}

// Sends the result to the waiting rank of each pair.
inline void end_partners(const Shape& shape, Schedule& schedule, const Partners& partners, uint32_t step) {
  if (!partners.paired()) return;
  if (partners.waits()) {
    schedule.receive(partners.mate(), step, target(), shape.bytes());
  } else {
    schedule.send(partners.mate(), step, target(), shape.bytes());
  }
  schedule.end_round();
}

}  // namespace weft::coll
