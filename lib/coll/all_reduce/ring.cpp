// Slices pass around a ring, where each rank adds its part; then the results pass around once more: 2 (n-1)
// rounds, with one neighbour in each direction. Slice s begins at rank s + 1 and is complete at rank s.
// Partial sums are sent in chunks, because scratch memory holds them until they are added.
#include "coll/algorithm.h"

namespace weft::coll::all_reduce {
namespace {

void build_ring(const Shape& shape, Schedule& schedule) {
  const int n = shape.size;
  const int next = (shape.rank + 1) % n;
  const int before = (shape.rank + n - 1) % n;
  const auto slice = [&](int index) { return slice_of(shape, (index % n + n) % n, n); };
  const auto at = [&](const Slice& s) { return target(s.begin * shape.element); };
  const uint64_t longest = slice(0).count;
  const uint64_t chunk = chunk_elements(shape);
  const Ref room = schedule.scratch(std::min(longest, chunk) * shape.element);
  schedule.begin(source(), target(), shape.count);
  schedule.end_round();
  uint32_t step = 0;
  for (int round = 1; round < n; round++) {
    for (uint64_t c = 0; c * chunk < longest; c++, step++) {
      const Slice sent = chunk_of(slice(shape.rank - round), c, chunk);
      const Slice grown = chunk_of(slice(shape.rank - round - 1), c, chunk);
      schedule.send(next, step, at(sent), sent.count * shape.element);
      schedule.receive(before, step, room, grown.count * shape.element);
      schedule.combine(room, at(grown), at(grown), grown.count);
      if (round == n - 1) schedule.end(at(grown), grown.count);
      schedule.end_round();
    }
  }
  if (n == 1) schedule.end(target(), shape.count);
  for (int round = 0; round < n - 1; round++, step++) {
    const Slice sent = slice(shape.rank - round);
    const Slice received = slice(shape.rank - round - 1);
    schedule.send(next, step, at(sent), sent.count * shape.element);
    schedule.receive(before, step, at(received), received.count * shape.element);
    schedule.end_round();
  }
  if (n == 1) schedule.end_round();
}

}  // namespace

const Algorithm& ring() {
  static constexpr Algorithm kRow{Coll::kAllReduce, "ring", never, build_ring, true};
  return kRow;
}

}  // namespace weft::coll::all_reduce
