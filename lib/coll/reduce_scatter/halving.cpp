// Recursive halving: a rank sends its partner the half of its blocks that the partner keeps, at half the
// distance in each round: log2(n) rounds.
#include "coll/partial.h"

namespace weft::coll::reduce_scatter {
namespace {

void build_halving(const Shape& shape, Schedule& schedule) {
  const Partners partners(shape.rank, shape.size);
  const uint64_t all = static_cast<uint64_t>(shape.size) * shape.bytes();
  const uint64_t count = static_cast<uint64_t>(shape.size) * shape.count;
  const Ref sum = schedule.scratch(all);
  const Ref room = schedule.scratch(all);
  const auto within = [&](Ref ref, int rank) {
    ref.offset += static_cast<uint64_t>(rank) * shape.bytes();
    return ref;
  };
  if (partners.waits()) schedule.send(partners.mate(), 0, source(), all);
  if (partners.paired() && !partners.waits()) schedule.receive(partners.mate(), 0, room, all);
  schedule.begin(source(), sum, count);
  if (partners.paired() && !partners.waits()) {
    schedule.begin(room, room, count);
    schedule.combine(sum, room, sum, count);
  }
  schedule.end_round();
  uint32_t step = 1;
  int begin = 0, end = partners.size();
  for (int distance = partners.size() / 2; distance >= 1; distance /= 2, step++) {
    if (partners.waits()) continue;
    const int other = partners.index() ^ distance;
    const bool lower = partners.index() < other;
    const int middle = begin + distance;
    const int low = partners.ranks_below(begin), cut = partners.ranks_below(middle);
    const int high = partners.ranks_below(end);
    const int mine = lower ? low : cut, my_ranks = lower ? cut - low : high - cut;
    const int theirs = lower ? cut : low, their_ranks = lower ? high - cut : cut - low;
    schedule.send(partners.rank_of(other), step, within(sum, theirs),
                  static_cast<uint64_t>(their_ranks) * shape.bytes());
    schedule.receive(partners.rank_of(other), step, room, static_cast<uint64_t>(my_ranks) * shape.bytes());
    const Ref at = within(sum, mine);
    schedule.combine(lower ? at : room, lower ? room : at, at, static_cast<uint64_t>(my_ranks) * shape.count);
    schedule.end_round();
    (lower ? end : begin) = middle;
  }
  if (partners.waits()) {
    schedule.receive(partners.mate(), step, target(), shape.bytes());
    return schedule.end_round();
  }
  const Ref own = within(sum, shape.rank);
  schedule.end(own, shape.count);
  if (partners.paired()) schedule.end(within(sum, partners.mate()), shape.count);
  schedule.copy(own, target(), shape.bytes());
  schedule.end_round();
  if (!partners.paired()) return;
  schedule.send(partners.mate(), step, within(sum, partners.mate()), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& halving() {
  static constexpr Algorithm kRow{Coll::kReduceScatter, "halving", never, build_halving, true};
  return kRow;
}

}  // namespace weft::coll::reduce_scatter
