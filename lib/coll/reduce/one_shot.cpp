// Every rank sends its vector to the root, which folds them in rank order. For small sizes.
#include <vector>

#include "coll/algorithm.h"

namespace weft::coll::reduce {
namespace {

bool small(const Shape& shape) {
  return shape.size == 1 || shape.bytes() <= kSmallBytes;
}

void build_one_shot(const Shape& shape, Schedule& schedule) {
  if (shape.rank != shape.root) {
    schedule.send(shape.root, 0, source(), shape.bytes());
    return schedule.end_round();
  }
  std::vector<Ref> inputs(static_cast<size_t>(shape.size), source());
  for (int from = 0; from < shape.size; from++) {
    if (from == shape.root) continue;
    Ref& input = inputs[static_cast<size_t>(from)] = schedule.scratch(shape.bytes());
    schedule.receive(from, 0, input, shape.bytes());
  }
  schedule.fold(inputs, target(), shape.count);
  schedule.end_round();
}

}  // namespace

const Algorithm& one_shot() {
  static constexpr Algorithm kRow{Coll::kReduce, "one_shot", small, build_one_shot};
  return kRow;
}

}  // namespace weft::coll::reduce
