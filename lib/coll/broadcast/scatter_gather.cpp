// The root sends a slice to each rank, then the ranks gather the slices from each other. The root sends the
// vector twice at most, for any number of ranks.
#include "coll/algorithm.h"

namespace weft::coll::broadcast {
namespace {

void build_scatter_gather(const Shape& shape, Schedule& schedule) {
  const auto offset = [&](int rank) { return slice_of(shape, rank, shape.size).begin * shape.element; };
  const auto bytes = [&](int rank) { return slice_of(shape, rank, shape.size).count * shape.element; };
  const bool is_root = shape.rank == shape.root;
  for (int peer = 0; is_root && peer < shape.size; peer++) {
    if (peer != shape.root) schedule.send(peer, 0, source(offset(peer)), bytes(peer));
  }
  if (!is_root) schedule.receive(shape.root, 0, target(offset(shape.rank)), bytes(shape.rank));
  schedule.end_round();
  for (int distance = 1; distance < shape.size; distance++) {
    const int to = (shape.rank + distance) % shape.size;
    const int from = (shape.rank + shape.size - distance) % shape.size;
    const Ref own = is_root ? source(offset(shape.rank)) : target(offset(shape.rank));
    if (to != shape.root) schedule.send(to, 1, own, bytes(shape.rank));
    if (!is_root) schedule.receive(from, 1, target(offset(from)), bytes(from));
  }
  if (is_root) schedule.copy(source(), target(), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& scatter_gather() {
  static constexpr Algorithm kRow{Coll::kBroadcast, "scatter_gather", always, build_scatter_gather};
  return kRow;
}

}  // namespace weft::coll::broadcast
