// Every rank sends an empty message to the rank 1, 2, 4 ... above and awaits the one from below, log2(n)
// times. So all that a rank awaits comes after every other rank has begun.
#include "coll/algorithm.h"

namespace weft::coll::barrier {
namespace {

void build_dissemination(const Shape& shape, Schedule& schedule) {
  const int n = shape.size;
  uint32_t step = 0;
  for (int distance = 1; distance < n; distance *= 2, step++) {
    schedule.send((shape.rank + distance) % n, step, {}, 0);
    schedule.receive((shape.rank + n - distance) % n, step, {}, 0);
    schedule.end_round();
  }
  if (n == 1) schedule.end_round();
}

}  // namespace

const Algorithm& dissemination() {
  static constexpr Algorithm kRow{Coll::kBarrier, "dissemination", never, build_dissemination, false, true};
  return kRow;
}

}  // namespace weft::coll::barrier
