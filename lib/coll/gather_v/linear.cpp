// Every rank sends its block to the root: one round, straight into the destination.
#include "coll/algorithm.h"

namespace weft::coll::gather_v {
namespace {

void build_linear(const Shape& shape, Schedule& schedule) {
  const BlockList& to = shape.blocks->to;
  const auto bytes = [&](int rank) { return to.count(rank) * shape.element; };
  if (shape.rank != shape.root) {
    schedule.send(shape.root, 0, source(), bytes(shape.rank));
    return schedule.end_round();
  }
  for (int from = 0; from < shape.size; from++) {
    if (from != shape.root) schedule.receive(from, 0, target(to.offset(from) * shape.element), bytes(from));
  }
  schedule.copy(source(), target(to.offset(shape.rank) * shape.element), bytes(shape.rank));
  schedule.end_round();
}

}  // namespace

const Algorithm& linear() {
  static constexpr Algorithm kRow{Coll::kGatherV, "linear", always, build_linear};
  return kRow;
}

}  // namespace weft::coll::gather_v
