// Chunks pass along a chain that ends at the root; each rank adds its part.
#include "coll/algorithm.h"

namespace weft::coll::reduce {
namespace {

void build_pipelined(const Shape& shape, Schedule& schedule) {
  const int place = (shape.rank + shape.size - shape.root - 1) % shape.size;  // the root is the last
  const int next = (shape.rank + 1) % shape.size;
  const int before = (shape.rank + shape.size - 1) % shape.size;
  const bool is_root = shape.rank == shape.root;
  const uint64_t chunk = chunk_elements(shape);
  const uint64_t chunks = (shape.count + chunk - 1) / chunk;
  const Slice all{0, shape.count};
  const uint64_t most = std::min(chunk, shape.count) * shape.element;
  const Ref room = schedule.scratch(most);
  // Two buffers, so that a chunk is sent while the next one is added.
  const Ref places[] = {schedule.scratch(most), schedule.scratch(most)};
  const auto sum_at = [&](uint64_t c) {
    return is_root ? target(chunk_of(all, c, chunk).begin * shape.element) : places[c % 2];
  };
  schedule.end_round();  // of the handshake
  for (uint64_t c = 0; c <= chunks; c++) {
    const Slice in = c < chunks ? chunk_of(all, c, chunk) : Slice();
    if (c < chunks && place > 0)
      schedule.receive(before, static_cast<uint32_t>(c), room, in.count * shape.element);
    if (c > 0 && !is_root) {
      const Slice out = chunk_of(all, c - 1, chunk);
      schedule.send(next, static_cast<uint32_t>(c - 1), sum_at(c - 1), out.count * shape.element);
    }
    if (c < chunks) {
      schedule.begin(source(in.begin * shape.element), sum_at(c), in.count);
      if (place > 0) schedule.combine(room, sum_at(c), sum_at(c), in.count);
      if (is_root) schedule.end(sum_at(c), in.count);
    }
    schedule.end_round();
  }
}

}  // namespace

const Algorithm& pipelined() {
  static constexpr Algorithm kRow{Coll::kReduce, "pipelined", never, build_pipelined, true};
  return kRow;
}

}  // namespace weft::coll::reduce
