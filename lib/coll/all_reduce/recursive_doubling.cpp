// Partners at distance 1, 2, 4 ... exchange whole vectors and add: log2(n) rounds. Both add the lower ranks'
// part first, so both get the same bits.
#include "coll/partial.h"

namespace weft::coll::all_reduce {
namespace {

void build_recursive_doubling(const Shape& shape, Schedule& schedule) {
  const Partners partners(shape.rank, shape.size);
  const Ref room = schedule.scratch(shape.bytes());
  begin_partners(shape, schedule, partners, room);
  uint32_t step = 1;
  for (int distance = 1; distance < partners.size(); distance *= 2, step++) {
    if (partners.waits()) continue;
    const int other = partners.index() ^ distance;
    const int peer = partners.rank_of(other);
    schedule.send(peer, step, target(), shape.bytes());
    schedule.receive(peer, step, room, shape.bytes());
    const bool lower = partners.index() < other;
    schedule.combine(lower ? target() : room, lower ? room : target(), target(), shape.count);
    schedule.end_round();
  }
  if (!partners.waits()) {
    schedule.end(target(), shape.count);
    schedule.end_round();
  }
  end_partners(shape, schedule, partners, step);
}

}  // namespace

const Algorithm& recursive_doubling() {
  static constexpr Algorithm kRow{Coll::kAllReduce, "recursive_doubling", never, build_recursive_doubling,
                                  true};
  return kRow;
}

}  // namespace weft::coll::all_reduce
