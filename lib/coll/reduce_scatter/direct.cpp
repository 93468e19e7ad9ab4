// Every rank sends block r to rank r, which folds what it receives in rank order; in chunks.
#include "coll/exchange.h"

namespace weft::coll::reduce_scatter {
namespace {

void build_direct(const Shape& shape, Schedule& schedule) {
  const auto slice_at = [&](int rank) {
    return Slice{static_cast<uint64_t>(rank) * shape.count, shape.count};
  };
  const uint64_t first = slice_at(shape.rank).begin;
  const auto folded = [&](uint64_t, const Slice& own) { return target((own.begin - first) * shape.element); };
  exchange_chunks(shape, schedule, slice_at, folded, [](uint64_t, uint64_t) {});
}

}  // namespace

const Algorithm& direct() {
  static constexpr Algorithm kRow{Coll::kReduceScatter, "direct", always, build_direct};
  return kRow;
}

}  // namespace weft::coll::reduce_scatter
