// Adds up a binomial tree to the root: log2(n) rounds. Ranks are counted from the root.
#include "coll/algorithm.h"

namespace weft::coll::reduce {
namespace {

void build_tree(const Shape& shape, Schedule& schedule) {
  const int place = (shape.rank + shape.size - shape.root) % shape.size;
  const auto rank_at = [&](int other) { return (other + shape.root) % shape.size; };
  const Ref room = schedule.scratch(shape.bytes());
  const Ref sum = place == 0 ? target() : schedule.scratch(shape.bytes());
  schedule.begin(source(), sum, shape.count);
  schedule.end_round();
  uint32_t step = 0;
  int width = 1;
  for (; width < shape.size && place % (2 * width) == 0; width *= 2, step++) {
    if (place + width >= shape.size) continue;
    schedule.receive(rank_at(place + width), step, room, shape.bytes());
    schedule.combine(sum, room, sum, shape.count);
    schedule.end_round();
  }
  if (place == 0) {
    schedule.end(sum, shape.count);
  } else {
    schedule.send(rank_at(place - width), step, sum, shape.bytes());
  }
  schedule.end_round();
}

}  // namespace

const Algorithm& tree() {
  static constexpr Algorithm kRow{Coll::kReduce, "tree", never, build_tree, true};
  return kRow;
}

}  // namespace weft::coll::reduce
