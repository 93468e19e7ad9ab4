// Adds up a binomial tree to the root: log2(n) rounds. Ranks are counted from the root. For small sizes on
// many ranks.
#include "coll/algorithm.h"

namespace weft::coll::reduce {
namespace {

void build_binomial(const Shape& shape, Schedule& schedule) {
  const int place = (shape.rank + shape.size - shape.root) % shape.size;
  const auto rank_at = [&](int other) { return (other + shape.root) % shape.size; };
  schedule.end_round();  // only the handshake
  const bool leaf = place % 2 == 1 || place + 1 >= shape.size;
  Ref sum = source();
  const Ref added = place == 0 ? target() : schedule.scratch(leaf ? 0 : shape.bytes());
  const Ref room = schedule.scratch(leaf ? 0 : shape.bytes());
  int width = 1;
  for (; width < shape.size && place % (2 * width) == 0; width *= 2) {
    if (place + width >= shape.size) continue;
    schedule.receive(rank_at(place + width), 0, room, shape.bytes());
    const Ref inputs[] = {sum, room};
    // The root's last part comes from the subtree of the upper half.
    if (place == 0 && 2 * width >= shape.size) {
      schedule.fold(inputs, added, shape.count);
    } else {
      schedule.add(inputs, added, shape.count);
    }
    schedule.end_round();
    sum = added;
  }
  if (place != 0) {
    schedule.send(rank_at(place - width), 0, sum, shape.bytes());
    return schedule.end_round();
  }
  if (shape.size > 1) return;
  schedule.fold(std::span(&sum, 1), added, shape.count);
  schedule.end_round();
}

}  // namespace

const Algorithm& binomial() {
  static constexpr Algorithm kRow{Coll::kReduce, "binomial", never, build_binomial, true};
  return kRow;
}

}  // namespace weft::coll::reduce
