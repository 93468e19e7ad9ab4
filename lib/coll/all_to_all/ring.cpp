// Sends one block a round, to a rank one further away each time: for networks that many concurrent flows
// congest.
#include "coll/algorithm.h"

namespace weft::coll::all_to_all {
namespace {

void build_ring(const Shape& shape, Schedule& schedule) {
  const auto offset = [&](int rank) { return static_cast<uint64_t>(rank) * shape.bytes(); };
  schedule.copy(source(offset(shape.rank)), target(offset(shape.rank)), shape.bytes());
  schedule.end_round();
  for (int distance = 1; distance < shape.size; distance++) {
    const int to = (shape.rank + distance) % shape.size;
    const int from = (shape.rank + shape.size - distance) % shape.size;
    const auto step = static_cast<uint32_t>(distance);
    schedule.send(to, step, source(offset(to)), shape.bytes());
    schedule.receive(from, step, target(offset(from)), shape.bytes());
    schedule.end_round();
  }
}

}  // namespace

const Algorithm& ring() {
  static constexpr Algorithm kRow{Coll::kAllToAll, "ring", never, build_ring};
  return kRow;
}

}  // namespace weft::coll::all_to_all
