// The root sends each rank its block: one round.
#include "coll/algorithm.h"

namespace weft::coll::scatter {
namespace {

void build_linear(const Shape& shape, Schedule& schedule) {
  const auto offset = [&](int rank) { return static_cast<uint64_t>(rank) * shape.bytes(); };
  if (shape.rank != shape.root) {
    schedule.receive(shape.root, 0, target(), shape.bytes());
    return schedule.end_round();
  }
  for (int to = 0; to < shape.size; to++) {
    if (to != shape.root) schedule.send(to, 0, source(offset(to)), shape.bytes());
  }
  schedule.copy(source(offset(shape.rank)), target(), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& linear() {
  static constexpr Algorithm kRow{Coll::kScatter, "linear", always, build_linear};
  return kRow;
}

}  // namespace weft::coll::scatter
