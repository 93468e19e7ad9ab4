// Blocks travel around a ring and grow by one rank's part at each: n - 1 rounds with one neighbour each way.
// Block b begins at rank b + 1 and ends at rank b.
#include "coll/algorithm.h"

namespace weft::coll::reduce_scatter {
namespace {

void build(const Shape& shape, Schedule& schedule) {
  const int n = shape.size;
  const auto block = [&](int index) {
    return source(static_cast<uint64_t>((index % n + n) % n) * shape.bytes());
  };
  // What is received, and what is sent of it in the next round.
  const Ref room = schedule.scratch(shape.bytes());
  const Ref own = schedule.scratch(shape.bytes());
  schedule.begin(block(shape.rank - 1), own, shape.count);
  schedule.end_round();
  for (int round = 1; round < n; round++) {
    const auto step = static_cast<uint32_t>(round);
    schedule.send((shape.rank + 1) % n, step, own, shape.bytes());
    schedule.receive((shape.rank + n - 1) % n, step, room, shape.bytes());
    schedule.begin(block(shape.rank - round - 1), own, shape.count);
    schedule.combine(room, own, own, shape.count);
    schedule.end_round();
  }
  schedule.end(own, shape.count);
  schedule.copy(own, target(), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& ring() {
  static constexpr Algorithm kRow{Coll::kReduceScatter, "ring", never, build, true};
  return kRow;
}

}  // namespace weft::coll::reduce_scatter
