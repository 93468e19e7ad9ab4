// Every rank sends block r to rank r: one round, straight into the destination.
#include "coll/algorithm.h"

namespace weft::coll::all_to_all {
namespace {

void build_direct(const Shape& shape, Schedule& schedule) {
  const auto offset = [&](int rank) { return static_cast<uint64_t>(rank) * shape.bytes(); };
  for (int distance = 1; distance < shape.size; distance++) {
    const int to = (shape.rank + distance) % shape.size;
    const int from = (shape.rank + shape.size - distance) % shape.size;
    schedule.send(to, 0, source(offset(to)), shape.bytes());
    schedule.receive(from, 0, target(offset(from)), shape.bytes());
  }
  schedule.copy(source(offset(shape.rank)), target(offset(shape.rank)), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& direct() {
  static constexpr Algorithm kRow{Coll::kAllToAll, "direct", always, build_direct};
  return kRow;
}

}  // namespace weft::coll::all_to_all
