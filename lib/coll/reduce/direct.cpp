// Reduce-scatter by direct exchange, as in all_reduce; the owners send their folded chunks to the root.
#include "coll/exchange.h"

namespace weft::coll::reduce {
namespace {

void build_direct(const Shape& shape, Schedule& schedule) {
  const bool is_root = shape.rank == shape.root;
  const auto slice_at = [&](int rank) { return slice_of(shape, rank, shape.size); };
  // Two result buffers: one is sent while the other one is computed.
  const uint64_t result_bytes =
      std::min(exchange_elements(shape), slice_at(shape.rank).count) * shape.element;
  Ref results[2];
  if (!is_root) {
    for (Ref& result : results) result = schedule.scratch(result_bytes);
  }
  const auto folded = [&](uint64_t c, const Slice& own) {
    return is_root ? target(own.begin * shape.element) : results[c % 2];
  };
  const auto collect = [&](uint64_t c, uint64_t chunk) {
    const auto step = static_cast<uint32_t>(2 * c + 1);
    if (!is_root) {
      const Slice own = chunk_of(slice_at(shape.rank), c, chunk);
      return schedule.send(shape.root, step, results[c % 2], own.count * shape.element);
    }
    for (int from = 0; from < shape.size; from++) {
      if (from == shape.root) continue;
      const Slice theirs = chunk_of(slice_at(from), c, chunk);
      schedule.receive(from, step, target(theirs.begin * shape.element), theirs.count * shape.element);
    }
  };
  exchange_chunks(shape, schedule, slice_at, folded, collect);
}

}  // namespace

const Algorithm& direct() {
  static constexpr Algorithm kRow{Coll::kReduce, "direct", always, build_direct};
  return kRow;
}

}  // namespace weft::coll::reduce
