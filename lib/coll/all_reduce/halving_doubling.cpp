// Reduce-scatter by recursive halving, all-gather by recursive doubling (Rabenseifner): 2 log2(n) rounds, 2
// (n-1)/n of the vector each way.
#include <vector>

#include "coll/partial.h"

namespace weft::coll::all_reduce {
namespace {

// Joins slices [begin, end) of `parts`.
Slice slices_of(const Shape& shape, int begin, int end, int parts) {
  const Slice first = slice_of(shape, begin, parts);
  const Slice last = slice_of(shape, end - 1, parts);
  return {first.begin, last.begin + last.count - first.begin};
}

void build_halving_doubling(const Shape& shape, Schedule& schedule) {
  const Partners partners(shape.rank, shape.size);
  const int parts = partners.size();
  const Ref room = schedule.scratch(shape.bytes());
  begin_partners(shape, schedule, partners, room);
  uint32_t step = 1;
  // The slices that this rank still adds; their number halves in every round.
  int begin = 0, end = parts;
  for (int distance = parts / 2; distance >= 1; distance /= 2, step++) {
    if (partners.waits()) continue;
    const int other = partners.index() ^ distance;
    const bool lower = partners.index() < other;
    const int middle = begin + distance;
    const Slice mine = lower ? slices_of(shape, begin, middle, parts) : slices_of(shape, middle, end, parts);
    const Slice theirs =
        lower ? slices_of(shape, middle, end, parts) : slices_of(shape, begin, middle, parts);
    const Ref at = target(mine.begin * shape.element);
    schedule.send(partners.rank_of(other), step, target(theirs.begin * shape.element),
                  theirs.count * shape.element);
    schedule.receive(partners.rank_of(other), step, room, mine.count * shape.element);
    schedule.combine(lower ? at : room, lower ? room : at, at, mine.count);
    schedule.end_round();
    (lower ? end : begin) = middle;
  }
  if (!partners.waits()) {
    const Slice mine = slice_of(shape, partners.index(), parts);
    schedule.end(target(mine.begin * shape.element), mine.count);
    schedule.end_round();
  }
  for (int distance = 1; distance < parts; distance *= 2, step++) {
    if (partners.waits()) continue;
    const int other = partners.index() ^ distance;
    const int block = partners.index() / distance * distance;
    const Slice mine = slices_of(shape, block, block + distance, parts);
    const Slice theirs = slices_of(shape, block ^ distance, (block ^ distance) + distance, parts);
    schedule.send(partners.rank_of(other), step, target(mine.begin * shape.element),
                  mine.count * shape.element);
    schedule.receive(partners.rank_of(other), step, target(theirs.begin * shape.element),
                     theirs.count * shape.element);
    schedule.end_round();
  }
  end_partners(shape, schedule, partners, step);
}

}  // namespace

const Algorithm& halving_doubling() {
  static constexpr Algorithm kRow{Coll::kAllReduce, "halving_doubling", never, build_halving_doubling, true};
  return kRow;
}

}  // namespace weft::coll::all_reduce
