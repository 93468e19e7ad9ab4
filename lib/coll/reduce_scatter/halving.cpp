// Recursive halving: a rank sends its partner the half of its blocks that the partner keeps, at half the
// distance in each stage: log2(n) stages. A rank beyond a power of two gives its vector to another one.
#include "coll/pair_exchange.h"
#include "coll/partners.h"

namespace weft::coll::reduce_scatter {
namespace {

constexpr uint32_t kLastStep = 1;  // of the result to a mate

void build_halving(const Shape& shape, Schedule& schedule) {
  const Partners partners(shape.rank, shape.size);
  if (shape.size == 1) {
    const Ref own[] = {source()};
    schedule.fold(own, target(), shape.count);
    return schedule.end_round();
  }
  // The blocks of the ranks for which partners [begin, end) act.
  const auto blocks = [&](int begin, int end) {
    const auto first = static_cast<uint64_t>(partners.ranks_below(begin));
    return Slice{first * shape.count,
                 (static_cast<uint64_t>(partners.ranks_below(end)) - first) * shape.count};
  };
  const auto at = [&](Ref vector, int rank) {
    vector.offset += static_cast<uint64_t>(rank) * shape.bytes();
    return vector;
  };
  const Slice all = blocks(0, partners.size());
  const bool pairs = partners.size() < shape.size;
  PairExchange exchanges(shape, schedule, pairs ? all.count : blocks(0, partners.size() / 2).count);
  uint32_t stage = 1;
  if (partners.waits()) {
    exchanges.add({.way = PairExchange::Way::kGive, .peer = partners.mate(), .own = source(), .sent = all});
    schedule.receive(partners.mate(), kLastStep, target(), shape.bytes());
    return schedule.end_round();
  }
  const Ref sum = schedule.scratch(all.count * shape.element);
  Ref own = source();
  if (partners.paired()) {
    exchanges.add(
        {.way = PairExchange::Way::kTake, .peer = partners.mate(), .own = own, .kept = all, .to = sum});
    own = sum;
  }
  int begin = 0, end = partners.size();
  for (int distance = partners.size() / 2; distance >= 1; distance /= 2, stage++) {
    const int other = partners.index() ^ distance;
    const bool lower = partners.index() < other;
    const int middle = begin + distance;
    exchanges.add({.peer = partners.rank_of(other),
                   .stage = stage,
                   .own = own,
                   .sent = lower ? blocks(middle, end) : blocks(begin, middle),
                   .kept = lower ? blocks(begin, middle) : blocks(middle, end),
                   .to = sum,
                   .lower = lower,
                   .last = distance == 1});
    own = sum;
    (lower ? end : begin) = middle;
  }
  if (partners.paired()) schedule.send(partners.mate(), kLastStep, at(sum, partners.mate()), shape.bytes());
  schedule.copy(at(sum, shape.rank), target(), shape.bytes());
  schedule.end_round();
}

}  // namespace

const Algorithm& halving() {
  static constexpr Algorithm kRow{Coll::kReduceScatter, "halving", never, build_halving, true, true};
  return kRow;
}

}  // namespace weft::coll::reduce_scatter
