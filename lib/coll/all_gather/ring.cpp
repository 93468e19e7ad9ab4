// Blocks pass around a ring: n - 1 rounds with one neighbour in each direction.
#include "coll/algorithm.h"

namespace weft::coll::all_gather {
namespace {

void build_ring(const Shape& shape, Schedule& schedule) {
  const int n = shape.size;
  const auto block = [&](int index) {
    return target(static_cast<uint64_t>((index + n) % n) * shape.bytes());
  };
  schedule.copy(source(), block(shape.rank), shape.bytes());
  schedule.end_round();
  for (int round = 0; round < n - 1; round++) {
    const auto step = static_cast<uint32_t>(round);
    schedule.send((shape.rank + 1) % n, step, block(shape.rank - round), shape.bytes());
    schedule.receive((shape.rank + n - 1) % n, step, block(shape.rank - round - 1), shape.bytes());
    schedule.end_round();
  }
}

}  // namespace

const Algorithm& ring() {
  static constexpr Algorithm kRow{Coll::kAllGather, "ring", never, build_ring};
  return kRow;
}

}  // namespace weft::coll::all_gather
