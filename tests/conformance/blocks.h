// Cases of blocks of different sizes: counts, the layout of the blocks in a rank's buffers, and the expected
// results.
#pragma once

#include <cstdint>
#include <vector>

#include "cases.h"
#include "transport/collectives.h"

namespace weft::test {

// The layout of one buffer of a rank, with all blocks or only its own.
struct BlockPlace {
  bool all = false;
  bool none = false;  // neither all blocks nor its own
  int rank = 0;
  std::vector<uint64_t> counts;
  std::vector<uint64_t> offsets;

  BlockList list() const { return {counts.data(), offsets.data()}; }
  uint64_t elements() const;  // without the gaps between blocks
  uint64_t end() const;       // with the gaps
  // Copy consecutive blocks to their offsets (put), and back (get).
  void put(const Bytes& packed, std::byte* buffer, uint64_t element) const;
  Bytes get(const std::byte* buffer, uint64_t element) const;
};

void draw_counts(Case& c, int size, Random& random);
BlockPlace source_of(const Case& c, int rank, int size);
BlockPlace target_of(const Case& c, int rank, int size);
// fold(c, first, count) returns the reduction of these elements of all sources.
Bytes expected_blocks(const Case& c, int rank, Bytes (*fold)(const Case&, uint64_t, uint64_t));

}  // namespace weft::test
