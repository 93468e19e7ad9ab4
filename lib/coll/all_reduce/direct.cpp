// Reduce-scatter by direct exchange to the slice's owner, which folds in rank order and rounds once, then
// all-gather of the folded chunks. Each rank sends and receives 2 (n-1)/n of the vector, as in a ring, in
// fewer steps.
#include "coll/exchange.h"

namespace weft::coll::all_reduce {
namespace {

void build_direct(const Shape& shape, Schedule& schedule) {
  const auto slice_at = [&](int rank) { return slice_of(shape, rank, shape.size); };
  const auto folded = [&](uint64_t, const Slice& own) { return target(own.begin * shape.element); };
  const auto gather = [&](uint64_t c, uint64_t chunk) {
    const auto step = static_cast<uint32_t>(2 * c + 1);
    const Slice own = chunk_of(slice_at(shape.rank), c, chunk);
    for (int distance = 1; distance < shape.size; distance++) {
      const int to = (shape.rank + distance) % shape.size;
      const int from = (shape.rank + shape.size - distance) % shape.size;
      const Slice theirs = chunk_of(slice_at(from), c, chunk);
      schedule.send(to, step, target(own.begin * shape.element), own.count * shape.element);
      // Safe to post ahead: the owner computed this result from the data here, so that data has been sent.
      schedule.receive(from, step, target(theirs.begin * shape.element), theirs.count * shape.element,
                       When::kAhead);
    }
  };
  exchange_chunks(shape, schedule, slice_at, folded, gather);
}

}  // namespace

const Algorithm& direct() {
  static constexpr Algorithm kRow{Coll::kAllReduce, "direct", always, build_direct};
  return kRow;
}

}  // namespace weft::coll::all_reduce
