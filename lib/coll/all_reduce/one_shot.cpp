// Every rank sends its vector to every other rank and folds all of them in rank order: one round. For small
// sizes.
#include <vector>

#include "coll/algorithm.h"

namespace weft::coll::all_reduce {
namespace {

bool small(const Shape& shape) {
  return shape.size == 1 || shape.bytes() <= shape.one_shot.value_or(table_one_shot(shape.size));
}

void build_one_shot(const Shape& shape, Schedule& schedule) {
  std::vector<Ref> inputs(static_cast<size_t>(shape.size), source());
  for (int distance = 1; distance < shape.size; distance++) {
    const int to = (shape.rank + distance) % shape.size;
    const int from = (shape.rank + shape.size - distance) % shape.size;
    schedule.send(to, 0, source(), shape.bytes());
    Ref& input = inputs[static_cast<size_t>(from)] = schedule.scratch(shape.bytes());
    schedule.receive(from, 0, input, shape.bytes());
  }
  schedule.fold(inputs, target(), shape.count);
  schedule.end_round();
}

}  // namespace

const Algorithm& one_shot() {
  static constexpr Algorithm kRow{Coll::kAllReduce, "one_shot", small, build_one_shot};
  return kRow;
}

}  // namespace weft::coll::all_reduce
