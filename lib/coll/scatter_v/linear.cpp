// The root sends each rank its block: one round.
#include "coll/algorithm.h"

namespace weft::coll::scatter_v {
namespace {

void build_linear(const Shape& shape, Schedule& schedule) {
  const BlockList& from = shape.blocks->from;
  const auto bytes = [&](int rank) { return from.count(rank) * shape.element; };
  if (shape.rank != shape.root) {
    schedule.receive(shape.root, 0, target(), bytes(shape.rank));
    return schedule.end_round();
  }
  for (int to = 0; to < shape.size; to++) {
    if (to != shape.root) schedule.send(to, 0, source(from.offset(to) * shape.element), bytes(to));
  }
  schedule.copy(source(from.offset(shape.rank) * shape.element), target(), bytes(shape.rank));
  schedule.end_round();
}

}  // namespace

const Algorithm& linear() {
  static constexpr Algorithm kRow{Coll::kScatterV, "linear", always, build_linear};
  return kRow;
}

}  // namespace weft::coll::scatter_v
