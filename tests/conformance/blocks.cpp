#include "blocks.h"

#include <cstring>
#include <numeric>

namespace weft::test {
namespace {

constexpr uint64_t kGap = 3;

BlockPlace place_of(const Case& c, int rank, int size, bool all, bool gives) {
  BlockPlace place;
  place.all = all;
  place.rank = rank;
  for (int r = 0; r < size; r++) {
    const bool pairs = c.coll == Coll::kAllToAllV;
    const int pair = gives ? rank * size + r : r * size + rank;
    place.counts.push_back(c.counts[static_cast<size_t>(pairs ? pair : r)]);
  }
  uint64_t at = 0;
  for (const uint64_t count : place.counts) {
    if (c.spaced) at += kGap;
    place.offsets.push_back(at);
    at += count;
  }
  return place;
}

}  // namespace

uint64_t BlockPlace::elements() const {
  if (none) return 0;
  return all ? std::accumulate(counts.begin(), counts.end(), uint64_t{0}) : counts[static_cast<size_t>(rank)];
}

uint64_t BlockPlace::end() const {
  if (none) return 0;
  return all ? offsets.back() + counts.back() : counts[static_cast<size_t>(rank)];
}

void BlockPlace::put(const Bytes& packed, std::byte* buffer, uint64_t element) const {
  if (packed.empty()) return;
  if (!all) {
    std::memcpy(buffer, packed.data(), packed.size());
    return;
  }
  const std::byte* next = packed.data();
  for (size_t r = 0; r < counts.size(); next += counts[r++] * element) {
    if (counts[r] > 0) std::memcpy(buffer + offsets[r] * element, next, counts[r] * element);
  }
}

Bytes BlockPlace::get(const std::byte* buffer, uint64_t element) const {
  Bytes packed;
  if (none) return packed;
  if (!all) return Bytes(buffer, buffer + elements() * element);
  for (size_t r = 0; r < counts.size(); r++) {
    const std::byte* const at = buffer + offsets[r] * element;
    packed.insert(packed.end(), at, at + counts[r] * element);
  }
  return packed;
}

void draw_counts(Case& c, int size, Random& random) {
  if (!has_blocks(c.coll)) return;
  const auto n = static_cast<size_t>(size);
  c.counts.resize(c.coll == Coll::kAllToAllV ? n * n : n);
  for (uint64_t& count : c.counts) count = random.chance(4) ? 0 : random.below(2 * c.count + 1);
  c.spaced = random.chance(2);
}

BlockPlace source_of(const Case& c, int rank, int size) {
  const bool root = rank == c.root;
  const bool all =
      c.coll == Coll::kReduceScatterV || c.coll == Coll::kAllToAllV || (c.coll == Coll::kScatterV && root);
  BlockPlace place = place_of(c, rank, size, all, true);
  place.none = c.coll == Coll::kScatterV && !root;
  return place;
}

BlockPlace target_of(const Case& c, int rank, int size) {
  const bool root = rank == c.root;
  const bool all =
      c.coll == Coll::kAllGatherV || c.coll == Coll::kAllToAllV || (c.coll == Coll::kGatherV && root);
  BlockPlace place = place_of(c, rank, size, all, false);
  place.none = c.coll == Coll::kGatherV && !root;
  return place;
}

Bytes expected_blocks(const Case& c, int rank, Bytes (*fold)(const Case&, uint64_t, uint64_t)) {
  const int size = static_cast<int>(c.sources.size());
  const uint64_t element = dtype_size(c.dtype);
  if (target_of(c, rank, size).none) return {};
  // Returns the number of elements before this rank's block, in a source that holds all blocks.
  const auto before = [&](int source) {
    const BlockPlace place = source_of(c, source, size);
    return std::accumulate(place.counts.begin(), place.counts.begin() + rank, uint64_t{0});
  };
  const auto part = [&](int source) {
    const Bytes& all = c.sources[static_cast<size_t>(source)];
    const BlockPlace place = source_of(c, source, size);
    if (!place.all) return all;
    const auto start = all.begin() + static_cast<std::ptrdiff_t>(before(source) * element);
    return Bytes(start,
                 start + static_cast<std::ptrdiff_t>(place.counts[static_cast<size_t>(rank)] * element));
  };
  if (c.coll == Coll::kReduceScatterV) return fold(c, before(rank), c.counts[static_cast<size_t>(rank)]);
  if (c.coll == Coll::kScatterV) return part(c.root);
  Bytes all;
  for (int r = 0; r < size; r++) {
    const Bytes block = part(r);
    all.insert(all.end(), block.begin(), block.end());
  }
  return all;
}

}  // namespace weft::test
