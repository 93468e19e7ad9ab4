// Describes an algorithm: a constant row that states its collective, when it may be used, and how to build
// one rank's schedule. Each algorithm is one file in its collective's folder and defines a function of its
// own name that returns the row. lib/coll/meson.build lists the files in order of preference. Unless the
// algorithm synchronises, a rank that is sent to in the first round also receives in its own first round
// (Schedule::add_handshake). Builders are pure functions: apart from the rank, their input is the same on
// every rank.
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
  // A reduction whose inputs must be folded at once, so that no partial result is rounded (folds_at_once).
  bool at_once = false;
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
  bool partial = false;  // folds partial results: not for Shape::at_once
  // No rank completes before it has messages that depend on every other rank's. So an operation needs no
  // handshake: ranks that execute something else are noticed by the descriptors of these messages.
  bool synchronises = false;
};

inline bool always(const Shape&) {
  return true;
}
// Algorithm::applies of algorithms that run only where they are named.
inline bool never(const Shape&) {
  return false;
}

// Returns true if the inputs of a reduction must be folded at once: ordered operations, 16-bit floats (a
// partial result would be rounded to 16 bits) and premultiplied inputs.
inline bool folds_at_once(const CollectiveArgs& args) {
  const bool narrow = is_float(args.dtype) && dtype_size(args.dtype) == 2;
  return is_reduction(args.coll) && (args.ordered || narrow || args.prescale != 1.0);
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

// Operations of synchronising algorithms have a handshake up to this number of ranks if they are longer than
// kSmallBytes. It costs little beside their data, carries wait statistics, and shows a mismatch at once.
inline constexpr int kHandshakeRanks = 64;

// Returns true if a collective lane adds a handshake to the schedule (Schedule::add_handshake).
inline bool needs_handshake(const Algorithm& algorithm, const Shape& shape) {
  return !algorithm.synchronises || (shape.bytes() > kSmallBytes && shape.size <= kHandshakeRanks);
}

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

// Elements of a chunk where `count` elements are sent in chunks, so that one is folded while others are sent.
// Short vectors are one chunk. Longer ones have at least kPipeline chunks, which begin on cache lines.
inline constexpr uint64_t kPipeline = 4;
inline uint64_t pipeline_elements(const Shape& shape, uint64_t count) {
  constexpr uint64_t kLeastBytes = 16 * 1024;
  constexpr uint64_t kMostBytes = 256 * 1024;
  if (count * shape.element < kPipeline * kLeastBytes) return std::max<uint64_t>(count, 1);
  const uint64_t most = kMostBytes / shape.element;
  return std::min((count / kPipeline + 63) / 64 * 64, most);
}

// Returns the number of chunks of `elements` elements: at least 1, because also empty messages are sent.
inline uint64_t chunks_of(uint64_t count, uint64_t elements) {
  return std::max<uint64_t>((count + elements - 1) / elements, 1);
}

}  // namespace weft::coll
