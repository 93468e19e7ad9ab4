// Reduce-scatter by direct exchange in chunks, shared by all_reduce, reduce and reduce_scatter. Every rank
// owns a slice, receives the other ranks' parts of it, and folds them once in rank order. While chunk c is
// folded, chunk c + 1 is being received, the messages of chunk c + 2 are posted, and the previous chunk's
// result is sent.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "coll/algorithm.h"

namespace weft::coll {

// Chunks of each rank in memory: one posted, one being received and one being folded.
inline constexpr uint64_t kSets = 3;

// Elements of a chunk of an exchange. Measured with 2 to 8 ranks at 256 KiB to 25 MiB (bench/notes). Between
// two ranks all chunks together take one MiB and stay in the cache. Among more, a round waits for the slowest
// of them, so chunks are larger and rounds fewer: 256 KiB, as far as 8 MiB for all chunks together allow.
inline uint64_t exchange_elements(const Shape& shape) {
  constexpr uint64_t kPair = 1 << 20, kMost = 8 << 20, kChunk = 256 * 1024, kLeast = 16 * 1024;
  const uint64_t chunks = kSets * static_cast<uint64_t>(shape.size);
  const uint64_t bytes = shape.size == 2 ? kPair / chunks : std::clamp(kMost / chunks, kLeast, kChunk);
  return bytes / 64 * 64 / shape.element;
}

// Adds the rounds of the exchange to the schedule. slice_at(rank) returns the slice of the source that the
// rank owns, which may be empty. folded(index, own) returns where the result of chunk `index` is written;
// `own` are its elements. after(index, chunk) adds the messages with the results of the chunks `index`, of
// `chunk` elements each. It is called for the round after the fold, two rounds after the exchange; its
// receives may be posted ahead. Chunk c uses step 2c for the exchange, and after() uses 2c + 1.
template <class SliceAt, class Folded, class After>
void exchange_chunks(const Shape& shape, Schedule& schedule, SliceAt&& slice_at, Folded&& folded,
                     After&& after) {
  const uint64_t chunk = exchange_elements(shape);
  uint64_t longest = 0;
  for (int r = 0; r < shape.size; r++) longest = std::max(longest, slice_at(r).count);
  const uint64_t chunks = (longest + chunk - 1) / chunk;
  if (chunks == 0) return;
  const Slice mine = slice_at(shape.rank);
  std::array<std::vector<Ref>, kSets> inputs;  // by rank
  for (uint64_t set = 0; set < std::min(chunks, kSets); set++) {
    inputs[set].resize(static_cast<size_t>(shape.size));
    for (int r = 0; r < shape.size; r++) {
      if (r == shape.rank) continue;
      inputs[set][static_cast<size_t>(r)] = schedule.scratch(std::min(chunk, mine.count) * shape.element);
    }
  }
  const auto exchange = [&](uint64_t c) {
    const auto step = static_cast<uint32_t>(2 * c);
    const Slice own = chunk_of(mine, c, chunk);
    for (int distance = 1; distance < shape.size; distance++) {
      const int to = (shape.rank + distance) % shape.size;
      const int from = (shape.rank + shape.size - distance) % shape.size;
      const Slice theirs = chunk_of(slice_at(to), c, chunk);
      schedule.send(to, step, source(theirs.begin * shape.element), theirs.count * shape.element,
                    When::kAhead);
      schedule.receive(from, step, inputs[c % kSets][static_cast<size_t>(from)], own.count * shape.element,
                       When::kAhead);
    }
  };
  for (uint64_t round = 0; round < chunks + 2; round++) {
    if (round < chunks) exchange(round);
    if (round >= 2) after(round - 2, chunk);
    if (round >= 1 && round <= chunks) {
      const Slice own = chunk_of(mine, round - 1, chunk);
      std::vector<Ref>& parts = inputs[(round - 1) % kSets];
      parts[static_cast<size_t>(shape.rank)] = source(own.begin * shape.element);
      schedule.fold(parts, folded(round - 1, own), own.count);
      schedule.meanwhile();
    }
    schedule.end_round();
  }
}

}  // namespace weft::coll
