// Partners at distance 1, 2, 4 ... exchange whole vectors and add: log2(n) rounds. Both put the lower ranks'
// part first, so both get the same bits. For small sizes on many ranks.
#include "coll/algorithm.h"
#include "coll/partners.h"

namespace weft::coll::all_reduce {
namespace {

void build_doubling(const Shape& shape, Schedule& schedule) {
  const Partners partners(shape.rank, shape.size);
  if (shape.size == 1) {
    const Ref own[] = {source()};
    schedule.fold(own, target(), shape.count);
    return schedule.end_round();
  }
  const Ref room = schedule.scratch(shape.bytes());
  Ref own = source();
  if (partners.waits()) {
    schedule.send(partners.mate(), 0, own, shape.bytes());
    schedule.end_round();
  } else if (partners.paired()) {
    schedule.receive(partners.mate(), 0, room, shape.bytes());
    const Ref inputs[] = {own, room};
    schedule.add(inputs, target(), shape.count);
    schedule.end_round();
    own = target();
  }
  uint32_t step = 1;
  for (int distance = 1; distance < partners.size(); distance *= 2, step++) {
    if (partners.waits()) continue;
    const int other = partners.index() ^ distance;
    const bool lower = partners.index() < other;
    schedule.send(partners.rank_of(other), step, own, shape.bytes());
    schedule.receive(partners.rank_of(other), step, room, shape.bytes());
    const Ref inputs[] = {lower ? own : room, lower ? room : own};
    if (2 * distance < partners.size()) {
      schedule.add(inputs, target(), shape.count);
    } else {
      schedule.fold(inputs, target(), shape.count);
    }
    schedule.end_round();
    own = target();
  }
  send_to_mate(shape, schedule, partners, step);
}

}  // namespace

const Algorithm& doubling() {
  static constexpr Algorithm kRow{Coll::kAllReduce, "doubling", never, build_doubling, true, true};
  return kRow;
}

}  // namespace weft::coll::all_reduce
