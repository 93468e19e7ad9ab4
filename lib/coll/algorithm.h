// Describes an algorithm: a constant row that states its collective, when it may be used, and how to build
// one rank's schedule. Each algorithm is one file in its collective's folder and defines a function of its
// own name that returns the row. lib/coll/meson.build lists the files in order of preference. A rank that is
// sent to in the first round also receives in its own first round (Schedule::add_handshake). Builders are
// pure functions: apart from the rank, their input is the same on every rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "coll/schedule.h"
#include "transport/collectives.h"

namespace weft::coll {

// The inputs of a builder. Only `rank` differs between ranks.
struct Shape {
  int rank = 0;
  int size = 1;
  int root = 0;          // or the peer of send and recv
  uint64_t count = 0;    // as in CollectiveArgs
  uint64_t element = 1;  // bytes
  // The largest all_reduce that uses one round; empty where it is neither measured nor given.
  std::optional<uint64_t> one_shot = {};
  const Blocks* blocks = nullptr;  // as in CollectiveArgs; valid while the schedule is built
  uint64_t bytes() const { return count * element; }
};

struct Algorithm {
  Coll coll;
  const char* name;
  // True if the algorithm can execute the shape and should be used there. The first such row of the table is
  // used.
  bool (*applies)(const Shape& shape);
  void (*build)(const Shape& shape, Schedule& schedule);
};

inline bool always(const Shape&) {
  return true;
}
// Returns the limit in bytes up to which all_reduce uses one_shot where it was neither measured nor given.
inline uint64_t table_one_shot(int ranks) {
  // With two ranks one_shot sends as many bytes as `direct`, in one round instead of two, so the limit is
  // higher. Measured: docs/dev/performance.md.
  constexpr uint64_t kPairBytes = 256 * 1024;
  constexpr uint64_t kAllBytes = 64 * 1024;  // of all ranks' vectors
  return ranks <= 2 ? kPairBytes : kAllBytes / static_cast<uint64_t>(ranks);
}

// Up to this size the cost of a message hardly depends on its size, so fewer rounds win over fewer bytes.
inline constexpr uint64_t kSmallBytes = 16 * 1024;

// Elements [begin, begin + count) of a vector.
struct Slice {
  uint64_t begin = 0;
  uint64_t count = 0;
};

// Returns slice `index` of `parts`. All but the last are equal, and each begins on a cache line of an aligned
// vector.
inline Slice slice_of(const Shape& shape, int index, int parts) {
  const uint64_t line = std::max<uint64_t>(64 / shape.element, 1);
  const uint64_t n = static_cast<uint64_t>(parts);
  const uint64_t even = (shape.count + n - 1) / n;
  const uint64_t step = (even + line - 1) / line * line;
  const uint64_t begin = std::min(shape.count, step * static_cast<uint64_t>(index));
  return {begin, std::min(step, shape.count - begin)};
}

// Returns chunk `index` of a slice. All chunks but the last have `elements` elements.
inline Slice chunk_of(const Slice& slice, uint64_t index, uint64_t elements) {
  const uint64_t begin = std::min(slice.count, index * elements);
  return {slice.begin + begin, std::min(elements, slice.count - begin)};
}

}  // namespace weft::coll
