// Partners at distance 1, 2, 4 ... exchange all blocks that they have: log2(n) rounds.
#include "coll/partial.h"

namespace weft::coll::all_gather {
namespace {

void build_recursive_doubling(const Shape& shape, Schedule& schedule) {
  const Partners partners(shape.rank, shape.size);
  const auto block = [&](int rank) { return target(static_cast<uint64_t>(rank) * shape.bytes()); };
  if (partners.waits()) schedule.send(partners.mate(), 0, source(), shape.bytes());
  if (partners.paired() && !partners.waits()) {
    schedule.receive(partners.mate(), 0, block(partners.mate()), shape.bytes());
  }
  schedule.copy(source(), block(shape.rank), shape.bytes());
  schedule.end_round();
  uint32_t step = 1;
  for (int distance = 1; distance < partners.size(); distance *= 2, step++) {
    if (partners.waits()) continue;
    const int mine = partners.index() / distance * distance;
    const int theirs = mine ^ distance;
    const int peer = partners.rank_of(partners.index() ^ distance);
    const auto bytes = [&](int first) {
      const int ranks = partners.ranks_below(first + distance) - partners.ranks_below(first);
      return static_cast<uint64_t>(ranks) * shape.bytes();
    };
    schedule.send(peer, step, block(partners.ranks_below(mine)), bytes(mine));
    schedule.receive(peer, step, block(partners.ranks_below(theirs)), bytes(theirs));
    schedule.end_round();
  }
  if (!partners.paired()) return;
  const uint64_t all = static_cast<uint64_t>(shape.size) * shape.bytes();
  if (partners.waits()) {
    schedule.receive(partners.mate(), step, target(), all);
  } else {
    schedule.send(partners.mate(), step, target(), all);
  }
  schedule.end_round();
}

}  // namespace

const Algorithm& recursive_doubling() {
  static constexpr Algorithm kRow{Coll::kAllGather, "recursive_doubling", never, build_recursive_doubling};
  return kRow;
}

}  // namespace weft::coll::all_gather
