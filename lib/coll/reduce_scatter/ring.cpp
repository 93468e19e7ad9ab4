// Blocks pass around a ring, chunk by chunk, and each rank adds its part: n - 1 rounds with one neighbour in
// each direction. Block b begins at rank b + 1 and ends at rank b.
#include "coll/algorithm.h"

namespace weft::coll::reduce_scatter {
namespace {

void build_ring(const Shape& shape, Schedule& schedule) {
  const int n = shape.size;
  const uint64_t chunk = std::min(shape.count, chunk_elements(shape));
  // `room` receives a chunk; `own` is what the next round sends.
  const Ref room = schedule.scratch(chunk * shape.element);
  const Ref own = schedule.scratch(chunk * shape.element);
  uint32_t step = 0;
  for (uint64_t done = 0; done < shape.count; done += chunk) {
    const uint64_t count = std::min(chunk, shape.count - done);
    const auto part = [&](int index) {
      const auto block = static_cast<uint64_t>((index % n + n) % n);
      return source((block * shape.count + done) * shape.element);
    };
    schedule.begin(part(shape.rank - 1), own, count);
    schedule.end_round();
    for (int round = 1; round < n; round++, step++) {
      schedule.send((shape.rank + 1) % n, step, own, count * shape.element);
      schedule.receive((shape.rank + n - 1) % n, step, room, count * shape.element);
      schedule.begin(part(shape.rank - round - 1), own, count);
      schedule.combine(room, own, own, count);
      schedule.end_round();
    }
    schedule.end(own, count);
    schedule.copy(own, target(done * shape.element), count * shape.element);
    schedule.end_round();
  }
}

}  // namespace

const Algorithm& ring() {
  static constexpr Algorithm kRow{Coll::kReduceScatter, "ring", never, build_ring, true};
  return kRow;
}

}  // namespace weft::coll::reduce_scatter
