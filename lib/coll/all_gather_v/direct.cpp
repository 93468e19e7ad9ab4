// Every rank sends its block to every other rank: one round, straight into the destination.
#include "coll/algorithm.h"

namespace weft::coll::all_gather_v {
namespace {

void build_direct(const Shape& shape, Schedule& schedule) {
  const BlockList& to = shape.blocks->to;
  const uint64_t own = to.count(shape.rank) * shape.element;
  for (int distance = 1; distance < shape.size; distance++) {
    const int peer = (shape.rank + distance) % shape.size;
    const int from = (shape.rank + shape.size - distance) % shape.size;
    schedule.send(peer, 0, source(), own);
    schedule.receive(from, 0, target(to.offset(from) * shape.element), to.count(from) * shape.element);
  }
  schedule.copy(source(), target(to.offset(shape.rank) * shape.element), own);
  schedule.end_round();
}

}  // namespace

const Algorithm& direct() {
  static constexpr Algorithm kRow{Coll::kAllGatherV, "direct", always, build_direct};
  return kRow;
}

}  // namespace weft::coll::all_gather_v
