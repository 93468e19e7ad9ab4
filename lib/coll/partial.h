// What algorithms that add partial results share. The ranks of a power of two exchange with partners; those
// beyond it hand their input to a rank within and get the result back.
#pragma once

#include "coll/algorithm.h"

namespace weft::coll {

// The largest power of two that is at most n.
inline int power_below(int n) {
  int power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

// Ranks as a power of two: pairs (0, 1), (2, 3) ... of the first ranks act as one each until all fit, so that
// parts that are combined are always of neighbouring ranks, the lower ones first.
class Partners {
 public:
  Partners(int rank, int size)
      : rank_(rank), size_(power_below(size)), paired_(2 * (size - power_below(size))) {}

  int size() const { return size_; }
  // Whether two ranks act as one here; then the even one acts and the odd one waits.
  bool paired() const { return rank_ < paired_; }
  bool waits() const { return paired() && rank_ % 2 == 1; }
  int mate() const { return rank_ ^ 1; }
  int index() const { return paired() ? rank_ / 2 : rank_ - paired_ / 2; }
  int rank_of(int index) const { return index < paired_ / 2 ? 2 * index : index + paired_ / 2; }
  // The ranks that the first `index` act for are those below this one.
  int ranks_below(int index) const { return index <= paired_ / 2 ? 2 * index : index + paired_ / 2; }

 private:
  int rank_;
  int size_;
  int paired_;
};

// Begin a partial result of the whole vector in the target, and let pairs become one. Uses step 0.
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

// The one that waited gets the result.
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
