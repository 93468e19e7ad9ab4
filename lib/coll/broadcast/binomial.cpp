// Sends the vector down a binomial tree from the root: log2(n) rounds. Ranks are counted from the root.
#include "coll/algorithm.h"

namespace weft::coll::broadcast {
namespace {

void build_binomial(const Shape& shape, Schedule& schedule) {
  const int place = (shape.rank + shape.size - shape.root) % shape.size;
  const auto rank_at = [&](int other) { return (other + shape.root) % shape.size; };
  // A rank's subtree begins at its own place; the lowest set bit of the place is its size.
  int width = 1;
  while (width < shape.size && place % (2 * width) == 0) width *= 2;
  schedule.end_round();  // only the handshake
  if (place != 0) {
    schedule.receive(rank_at(place - width), 0, target(), shape.bytes());
    schedule.end_round();
  }
  for (int below = width / 2; below >= 1; below /= 2) {
    if (place + below >= shape.size) continue;
    schedule.send(rank_at(place + below), 0, place == 0 ? source() : target(), shape.bytes());
  }
  if (place == 0) schedule.copy(source(), target(), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& binomial() {
  static constexpr Algorithm kRow{Coll::kBroadcast, "binomial", never, build_binomial};
  return kRow;
}

}  // namespace weft::coll::broadcast
