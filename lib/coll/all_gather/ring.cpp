// Blocks pass around a ring: each rank sends n-1 blocks to one neighbour. A block is passed on in chunks.
#include "coll/algorithm.h"

namespace weft::coll::all_gather {
namespace {

// A block's chunk c is message number r * chunks + c, if it is sent in round r of the ring.
void build_ring(const Shape& shape, Schedule& schedule) {
  const int n = shape.size;
  const uint64_t chunk = pipeline_elements(shape, shape.count);
  const uint64_t chunks = chunks_of(shape.count, chunk);
  const When when = chunks >= kPipeline ? When::kAhead : When::kInRound;
  const auto place = [&](int block, const Slice& part) {
    const auto first = static_cast<uint64_t>((block + 2 * n) % n) * shape.count;
    return target((first + part.begin) * shape.element);
  };
  for (int round = 0; round + 1 < n; round++) {
    for (uint64_t c = 0; c < chunks; c++) {
      const Slice part = chunk_of({0, shape.count}, c, chunk);
      const auto step = static_cast<uint32_t>(static_cast<uint64_t>(round) * chunks + c);
      schedule.send((shape.rank + 1) % n, step,
                    round == 0 ? source(part.begin * shape.element) : place(shape.rank - round, part),
                    part.count * shape.element, when);
      schedule.receive((shape.rank + n - 1) % n, step, place(shape.rank - round - 1, part),
                       part.count * shape.element, when);
      if (round == 0 && c == 0) {
        schedule.copy(source(), place(shape.rank, {}), shape.bytes());
        schedule.meanwhile();
      }
      schedule.end_round();
    }
  }
  if (n > 1) return;
  schedule.copy(source(), target(), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& ring() {
  static constexpr Algorithm kRow{Coll::kAllGather, "ring", never, build_ring, false, true};
  return kRow;
}

}  // namespace weft::coll::all_gather
