// Reduce-scatter by direct exchange in chunks, which all_reduce, reduce and reduce_scatter share: every rank
// owns a slice, receives the others' parts of it and folds them in rank order, once. What is done with a
// folded chunk travels with the next chunk's round.
#pragma once

#include <algorithm>
#include <vector>

#include "coll/algorithm.h"

namespace weft::coll {

// slice_at(rank): the slice of the source that the rank owns, possibly empty. folded(chunk, where): where the
// own chunk goes. after(index): adds messages with the results of chunks `index`, to the round after theirs.
// Steps of chunk c: 2c for the exchange; after() uses 2c + 1.
template <class SliceAt, class Folded, class After>
void exchange_chunks(const Shape& shape, Schedule& schedule, SliceAt&& slice_at, Folded&& folded,
                     After&& after) {
  const uint64_t chunk = chunk_elements(shape);
  uint64_t longest = 0;
  for (int r = 0; r < shape.size; r++) longest = std::max(longest, slice_at(r).count);
  const uint64_t chunks = (longest + chunk - 1) / chunk;
  const Slice mine = slice_at(shape.rank);
  std::vector<Ref> rooms(static_cast<size_t>(shape.size));
  for (int r = 0; r < shape.size; r++) {
    if (r != shape.rank) {
      rooms[static_cast<size_t>(r)] = schedule.scratch(std::min(chunk, mine.count) * shape.element);
    }
  }
  for (uint64_t c = 0; c < chunks; c++) {
    const auto step = static_cast<uint32_t>(2 * c);
    const Slice own = chunk_of(mine, c, chunk);
    for (int distance = 1; distance < shape.size; distance++) {
      const int to = (shape.rank + distance) % shape.size;
      const int from = (shape.rank + shape.size - distance) % shape.size;
      const Slice theirs = chunk_of(slice_at(to), c, chunk);
      schedule.send(to, step, source(theirs.begin * shape.element), theirs.count * shape.element);
      schedule.receive(from, step, rooms[static_cast<size_t>(from)], own.count * shape.element);
    }
    if (c > 0) after(c - 1);
    rooms[static_cast<size_t>(shape.rank)] = source(own.begin * shape.element);
    schedule.fold(rooms, folded(own), own.count);
    schedule.end_round();
  }
  if (chunks > 0) {
    after(chunks - 1);
    schedule.end_round();
  }
}

}  // namespace weft::coll
