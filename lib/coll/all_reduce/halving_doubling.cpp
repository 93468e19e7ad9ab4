// Reduce-scatter by recursive halving, all-gather by recursive doubling (Rabenseifner): 2 log2(n) rounds, in
// which a rank sends 2 (n-1)/n of the vector. A rank beyond a power of two gives its vector to another one.
#include "coll/pair_exchange.h"
#include "coll/partners.h"

namespace weft::coll::all_reduce {
namespace {

// Joins slices [begin, end) of `parts`.
Slice slices_of(const Shape& shape, int begin, int end, int parts) {
  const Slice first = slice_of(shape, begin, parts);
  const Slice last = slice_of(shape, end - 1, parts);
  return {first.begin, last.begin + last.count - first.begin};
}

void build_halving_doubling(const Shape& shape, Schedule& schedule) {
  const Partners partners(shape.rank, shape.size);
  const int parts = partners.size();
  const Slice all{0, shape.count};
  if (shape.size == 1) {
    const Ref own[] = {source()};
    schedule.fold(own, target(), shape.count);
    return schedule.end_round();
  }
  const bool pairs = parts < shape.size;
  PairExchange exchanges(shape, schedule, pairs ? shape.count : slices_of(shape, 0, parts / 2, parts).count);
  uint32_t stage = 1;
  Ref own = source();
  if (partners.waits()) {
    exchanges.add({.way = PairExchange::Way::kGive, .peer = partners.mate(), .own = own, .sent = all});
  } else if (partners.paired()) {
    exchanges.add(
        {.way = PairExchange::Way::kTake, .peer = partners.mate(), .own = own, .kept = all, .to = target()});
    own = target();
  }
  // The slices that this rank still adds; their number halves in every stage.
  int begin = 0, end = parts;
  for (int distance = parts / 2; distance >= 1; distance /= 2, stage++) {
    if (partners.waits()) continue;
    const int other = partners.index() ^ distance;
    const bool lower = partners.index() < other;
    const int middle = begin + distance;
    const Slice low = slices_of(shape, begin, middle, parts), high = slices_of(shape, middle, end, parts);
    exchanges.add({.peer = partners.rank_of(other),
                   .stage = stage,
                   .own = own,
                   .sent = lower ? high : low,
                   .kept = lower ? low : high,
                   .to = target(),
                   .lower = lower,
                   .last = distance == 1});
    own = target();
    (lower ? end : begin) = middle;
  }
  for (int distance = 1; distance < parts; distance *= 2, stage++) {
    if (partners.waits()) continue;
    const int peer = partners.rank_of(partners.index() ^ distance);
    const int block = partners.index() / distance * distance;
    const Slice mine = slices_of(shape, block, block + distance, parts);
    const Slice theirs = slices_of(shape, block ^ distance, (block ^ distance) + distance, parts);
    const uint32_t step = stage << 24;
    schedule.send(peer, step, target(mine.begin * shape.element), mine.count * shape.element);
    schedule.receive(peer, step, target(theirs.begin * shape.element), theirs.count * shape.element);
    schedule.end_round();
  }
  send_to_mate(shape, schedule, partners, stage << 24);
}

}  // namespace

const Algorithm& halving_doubling() {
  static constexpr Algorithm kRow{
      Coll::kAllReduce, "halving_doubling", never, build_halving_doubling, true, true};
  return kRow;
}

}  // namespace weft::coll::all_reduce
