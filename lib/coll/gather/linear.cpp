// Every rank sends its block to the root: one round, straight into the destination.
#include "coll/algorithm.h"

namespace weft::coll::gather {
namespace {

void build_linear(const Shape& shape, Schedule& schedule) {
  const auto offset = [&](int rank) { return static_cast<uint64_t>(rank) * shape.bytes(); };
  if (shape.rank != shape.root) {
    schedule.send(shape.root, 0, source(), shape.bytes());
    return schedule.end_round();
  }
  for (int from = 0; from < shape.size; from++) {
    if (from != shape.root) schedule.receive(from, 0, target(offset(from)), shape.bytes());
  }
  schedule.copy(source(), target(offset(shape.rank)), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& linear() {
  static constexpr Algorithm kRow{Coll::kGather, "linear", always, build_linear};
  return kRow;
}

}  // namespace weft::coll::gather
