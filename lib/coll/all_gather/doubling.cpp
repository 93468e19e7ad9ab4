// Every rank collects the blocks from its own upwards, and sends all that it has to the rank 1, 2, 4 ...
// below (Bruck): log2(n) rounds, for any number of ranks. For small blocks.
#include "coll/algorithm.h"

namespace weft::coll::all_gather {
namespace {

void build_doubling(const Shape& shape, Schedule& schedule) {
  const int n = shape.size;
  const auto bytes = [&](int blocks) { return static_cast<uint64_t>(blocks) * shape.bytes(); };
  const Ref collected = schedule.scratch(bytes(n));  // block `rank` first, then those after it, in a circle
  const auto at = [&](int block) { return Ref(Space::kScratch, collected.offset + bytes(block)); };
  uint32_t step = 0;
  for (int distance = 1; distance < n; distance *= 2, step++) {
    const int blocks = std::min(distance, n - distance);
    schedule.send((shape.rank + n - distance) % n, step, step == 0 ? source() : at(0), bytes(blocks));
    schedule.receive((shape.rank + distance) % n, step, at(distance), bytes(blocks));
    if (step == 0) {
      schedule.copy(source(), at(0), shape.bytes());
      schedule.meanwhile();
    }
    schedule.end_round();
  }
  if (n == 1) schedule.copy(source(), at(0), shape.bytes());
  const int upper = n - shape.rank;  // blocks up to the last rank's
  schedule.copy(at(0), target(bytes(shape.rank)), bytes(upper));
  schedule.copy(at(upper), target(), bytes(shape.rank));
  schedule.end_round();
}

}  // namespace

const Algorithm& doubling() {
  static constexpr Algorithm kRow{Coll::kAllGather, "doubling", never, build_doubling, false, true};
  return kRow;
}

}  // namespace weft::coll::all_gather
