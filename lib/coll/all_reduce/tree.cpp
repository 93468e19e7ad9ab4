// Adds up a binomial tree to rank 0, and sends the result down: 2 log2(n) rounds. A subtree consists of
// neighbouring ranks.
#include "coll/algorithm.h"

namespace weft::coll::all_reduce {
namespace {

void build_tree(const Shape& shape, Schedule& schedule) {
  const Ref room = schedule.scratch(shape.bytes());
  schedule.begin(source(), target(), shape.count);
  schedule.end_round();
  // Finds the rank's place in the tree: it is the root of a subtree of `width` ranks.
  int width = 1;
  uint32_t step = 0;
  for (; width < shape.size && shape.rank % (2 * width) == 0; width *= 2, step++) {
    if (shape.rank + width >= shape.size) continue;
    schedule.receive(shape.rank + width, step, room, shape.bytes());
    schedule.combine(target(), room, target(), shape.count);
    schedule.end_round();
  }
  constexpr uint32_t kDown = 64;
  if (shape.rank != 0) {
    schedule.send(shape.rank - width, step, target(), shape.bytes());
    schedule.end_round();
    schedule.receive(shape.rank - width, kDown + step, target(), shape.bytes());
  } else {
    schedule.end(target(), shape.count);
  }
  schedule.end_round();
  for (int below = width / 2; below >= 1; below /= 2) {
    if (shape.rank + below < shape.size) {
      schedule.send(shape.rank + below, kDown + --step, target(), shape.bytes());
    } else {
      --step;
    }
  }
  schedule.end_round();
}

}  // namespace

const Algorithm& tree() {
  static constexpr Algorithm kRow{Coll::kAllReduce, "tree", never, build_tree, true};
  return kRow;
}

}  // namespace weft::coll::all_reduce
