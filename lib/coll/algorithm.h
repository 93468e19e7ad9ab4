// An algorithm: a constant row, given by a function of the algorithm's name, that says which collective it is
// for, when it may be used, and how one rank's schedule is built. One file each, in the collective's folder;
// lib/coll/meson.build lists them, in order of preference. In the first round, whom a rank sends to receives
// in its own first round (Schedule::add_handshake). Builders are pure: the same on every rank but for the
// rank itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "coll/schedule.h"
#include "core/collectives.h"

namespace weft::coll {

// What a builder may depend on: nothing that differs between ranks, except the rank.
struct Shape {
  int rank = 0;
  int size = 1;
  int root = 0;          // or the peer of send and recv
  uint64_t count = 0;    // as in CollectiveArgs
  uint64_t element = 1;  // bytes
  bool ordered = false;  // CollectiveArgs::ordered
  // The largest all_reduce that goes in one round, where that is measured or given.
  std::optional<uint64_t> one_shot = {};
  const Blocks* blocks = nullptr;  // as in CollectiveArgs; while the schedule is built
  uint64_t bytes() const { return count * element; }
};

struct Algorithm {
  Coll coll;
  const char* name;
  // Whether it can execute the shape, and is the one to use there unless an earlier row is.
  bool (*applies)(const Shape& shape);
  void (*build)(const Shape& shape, Schedule& schedule);
  bool partial = false;  // adds partial results: not for ordered operations
};

inline bool always(const Shape&) {
  return true;
}
// Of algorithms that are used when they are forced alone.
inline bool never(const Shape&) {
  return false;
}

// The same of a table: what is used where nothing is known of the network.
inline uint64_t table_one_shot(int ranks) {
  // Two ranks send in one round as many bytes as in the two of direct. Measured: docs/performance.md.
  constexpr uint64_t kPairBytes = 256 * 1024;
  constexpr uint64_t kAllBytes = 64 * 1024;  // of all ranks' vectors
  return ranks <= 2 ? kPairBytes : kAllBytes / static_cast<uint64_t>(ranks);
}

// Up to here a message costs about the same whatever its size, so fewer rounds win over fewer bytes.
inline constexpr uint64_t kSmallBytes = 16 * 1024;

// Elements [begin, begin + count) of a vector.
struct Slice {
  uint64_t begin = 0;
  uint64_t count = 0;
};

// Slice `index` of `parts`: all but the last are equal and begin on a cache line of an aligned vector.
inline Slice slice_of(const Shape& shape, int index, int parts) {
  const uint64_t line = std::max<uint64_t>(64 / shape.element, 1);
  const uint64_t n = static_cast<uint64_t>(parts);
  const uint64_t even = (shape.count + n - 1) / n;
  const uint64_t step = (even + line - 1) / line * line;
  const uint64_t begin = std::min(shape.count, step * static_cast<uint64_t>(index));
  return {begin, std::min(step, shape.count - begin)};
}

// Chunk `index` of a slice, `elements` each but the last.
inline Slice chunk_of(const Slice& slice, uint64_t index, uint64_t elements) {
  const uint64_t begin = std::min(slice.count, index * elements);
  return {slice.begin + begin, std::min(elements, slice.count - begin)};
}

// Elements in a chunk when chunks of all peers are held at once: scratch stays at about 2 MiB.
inline uint64_t chunk_elements(const Shape& shape) {
  const uint64_t budget = (uint64_t{2} << 20) / static_cast<uint64_t>(std::max(shape.size, 1));
  return std::clamp<uint64_t>(budget, 64 * 1024, 512 * 1024) / shape.element;
}

}  // namespace weft::coll
