// The root sends the whole vector to every rank. For small sizes.
#include "coll/algorithm.h"

namespace weft::coll::broadcast {
namespace {

bool small(const Shape& shape) {
  return shape.size <= 2 || shape.bytes() <= kSmallBytes;
}

void build_flat(const Shape& shape, Schedule& schedule) {
  if (shape.rank != shape.root) {
    schedule.receive(shape.root, 0, target(), shape.bytes());
    return schedule.end_round();
  }
  for (int distance = 1; distance < shape.size; distance++) {
    schedule.send((shape.rank + distance) % shape.size, 0, source(), shape.bytes());
  }
  schedule.copy(source(), target(), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& flat() {
  static constexpr Algorithm kRow{Coll::kBroadcast, "flat", small, build_flat};
  return kRow;
}

}  // namespace weft::coll::broadcast
