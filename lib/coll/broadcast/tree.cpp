// Sends down a binomial tree from the root: log2(n) rounds. Ranks are counted from the root.
#include "coll/algorithm.h"

namespace weft::coll::broadcast {
namespace {

void build_tree(const Shape& shape, Schedule& schedule) {
  const int place = (shape.rank + shape.size - shape.root) % shape.size;
  const auto rank_at = [&](int other) { return (other + shape.root) % shape.size; };
  // The rank's subtree begins at its own place; its size is the lowest set bit of the place.
  int width = 1;
  while (width < shape.size && place % (2 * width) == 0) width *= 2;
  if (place == 0) schedule.copy(source(), target(), shape.bytes());
  schedule.end_round();  // of the handshake
  if (place != 0) {
    schedule.receive(rank_at(place - width), 0, target(), shape.bytes());
  }
  schedule.end_round();
  for (int below = width / 2; below >= 1; below /= 2) {
    if (place + below < shape.size) schedule.send(rank_at(place + below), 0, target(), shape.bytes());
  }
  schedule.end_round();
}

}  // namespace

const Algorithm& tree() {
  static constexpr Algorithm kRow{Coll::kBroadcast, "tree", never, build_tree};
  return kRow;
}

}  // namespace weft::coll::broadcast
