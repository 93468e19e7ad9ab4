// Chunks pass along a chain that begins at the root: each rank receives a chunk while it sends the previous
// one.
#include "coll/algorithm.h"

namespace weft::coll::broadcast {
namespace {

void build_pipelined(const Shape& shape, Schedule& schedule) {
  const bool is_root = shape.rank == shape.root;
  const int next = (shape.rank + 1) % shape.size;
  const int before = (shape.rank + shape.size - 1) % shape.size;
  const uint64_t chunk = chunk_elements(shape);
  const uint64_t chunks = (shape.count + chunk - 1) / chunk;
  const Slice all{0, shape.count};
  if (is_root) schedule.copy(source(), target(), shape.bytes());
  schedule.end_round();  // of the handshake
  for (uint64_t c = 0; c <= chunks; c++) {
    if (c < chunks && !is_root) {
      const Slice in = chunk_of(all, c, chunk);
      schedule.receive(before, static_cast<uint32_t>(c), target(in.begin * shape.element),
                       in.count * shape.element);
    }
    if (c > 0 && next != shape.root) {
      const Slice out = chunk_of(all, c - 1, chunk);
      schedule.send(next, static_cast<uint32_t>(c - 1), target(out.begin * shape.element),
                    out.count * shape.element);
    }
    schedule.end_round();
  }
}

}  // namespace

const Algorithm& pipelined() {
  static constexpr Algorithm kRow{Coll::kBroadcast, "pipelined", never, build_pipelined};
  return kRow;
}

}  // namespace weft::coll::broadcast
