// Every rank sends block r to rank r: one round, straight into the destination.
#include "coll/algorithm.h"

namespace weft::coll::all_to_all_v {
namespace {

void build_direct(const Shape& shape, Schedule& schedule) {
  const BlockList& from = shape.blocks->from;
  const BlockList& to = shape.blocks->to;
  const auto at = [&](const BlockList& list, int rank) { return list.offset(rank) * shape.element; };
  for (int distance = 1; distance < shape.size; distance++) {
    const int above = (shape.rank + distance) % shape.size;
    const int below = (shape.rank + shape.size - distance) % shape.size;
    schedule.send(above, 0, source(at(from, above)), from.count(above) * shape.element);
    schedule.receive(below, 0, target(at(to, below)), to.count(below) * shape.element);
  }
  schedule.copy(source(at(from, shape.rank)), target(at(to, shape.rank)),
                from.count(shape.rank) * shape.element);
  schedule.end_round();
}

}  // namespace

const Algorithm& direct() {
  static constexpr Algorithm kRow{Coll::kAllToAllV, "direct", always, build_direct};
  return kRow;
}

}  // namespace weft::coll::all_to_all_v
