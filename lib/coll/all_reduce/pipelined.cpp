// Chunks pass from rank 0 to the last rank, each rank adds its part, and the results come back. Both
// directions of every link are busy, and each rank communicates with two neighbours only. Adds in rank order.
#include "coll/algorithm.h"

namespace weft::coll::all_reduce {
namespace {

void build_pipelined(const Shape& shape, Schedule& schedule) {
  const uint64_t chunk = chunk_elements(shape);
  const uint64_t chunks = (shape.count + chunk - 1) / chunk;
  const int last = shape.size - 1;
  const Slice all{0, shape.count};
  const auto at = [&](const Slice& s) { return target(s.begin * shape.element); };
  const Ref room = schedule.scratch(std::min(chunk, shape.count) * shape.element);
  schedule.begin(source(), target(), shape.count);
  schedule.end_round();
  // In round t, chunk t - rank is received from the rank below; it is sent upwards in the next round and
  // returns 2 (last - rank) rounds later.
  const auto up = [&](uint64_t round, uint64_t delay, Slice* s) {
    if (round < delay || round - delay >= chunks) return false;
    *s = chunk_of(all, round - delay, chunk);
    return true;
  };
  const auto rank = static_cast<uint64_t>(shape.rank);
  const auto top = static_cast<uint64_t>(last);
  const uint64_t rounds = chunks == 0 ? 0 : chunks + 2 * top + 1;
  for (uint64_t round = 0; round < rounds; round++) {
    Slice in, out, back_in, back_out;
    const bool grows = shape.rank > 0 && up(round, rank, &in);
    const bool goes = shape.rank < last && up(round, rank + 1, &out);
    const bool returns = shape.rank < last && up(round, 2 * top - rank, &back_in);
    const bool hands_down = shape.rank > 0 && up(round, 2 * top - rank + 1, &back_out);
    const auto step = [&](const Slice& s, uint32_t direction) {
      return static_cast<uint32_t>(s.begin / chunk * 2 + direction);
    };
    if (grows) schedule.receive(shape.rank - 1, step(in, 0), room, in.count * shape.element);
    if (returns) {
      schedule.receive(shape.rank + 1, step(back_in, 1), at(back_in), back_in.count * shape.element);
    }
    if (goes) schedule.send(shape.rank + 1, step(out, 0), at(out), out.count * shape.element);
    if (hands_down) {
      schedule.send(shape.rank - 1, step(back_out, 1), at(back_out), back_out.count * shape.element);
    }
    if (grows) {
      schedule.combine(room, at(in), at(in), in.count);
      if (shape.rank == last) schedule.end(at(in), in.count);
    }
    if (grows || goes || returns || hands_down) schedule.end_round();
  }
  if (shape.size == 1) schedule.end(target(), shape.count);
  schedule.end_round();
}

}  // namespace

const Algorithm& pipelined() {
  static constexpr Algorithm kRow{Coll::kAllReduce, "pipelined", never, build_pipelined, true};
  return kRow;
}

}  // namespace weft::coll::all_reduce
