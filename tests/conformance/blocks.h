// Cases of blocks of different sizes: their counts, where blocks lie in a rank's buffers, and what must
// arrive.
#pragma once

#include <cstdint>
#include <vector>

#include "cases.h"
#include "core/collectives.h"

namespace weft::test {

// One buffer of a rank: all blocks, or its own alone.
struct BlockPlace {
  bool all = false;
  bool none = false;  // neither is there
  int rank = 0;
  std::vector<uint64_t> counts;
  std::vector<uint64_t> offsets;

  BlockList list() const { return {counts.data(), offsets.data()}; }
  uint64_t elements() const;  // without what is between
  uint64_t end() const;       // with it
  // Blocks that lie one after the other, to and from their places.
  void put(const Bytes& packed, std::byte* buffer, uint64_t element) const;
  Bytes get(const std::byte* buffer, uint64_t element) const;
};

void draw_counts(Case& c, int size, Random& random);
BlockPlace source_of(const Case& c, int rank, int size);
BlockPlace target_of(const Case& c, int rank, int size);
// fold(c, first, count): the reduction of these elements of all sources.
Bytes expected_blocks(const Case& c, int rank, Bytes (*fold)(const Case&, uint64_t, uint64_t));

}  // namespace weft::test
