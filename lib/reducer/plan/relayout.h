// Moves gradients to other places of the same memory, all at once. A re-plan does this if the new buckets fit
// into the memory of the old ones. Used by calls/replan.cpp, between steps. Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// Moves bytes [from, from + bytes) to [to, to + bytes). The old ranges do not overlap each other, nor do the
// new ones.
struct Move {
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t bytes = 0;
};

// scratch: room for at least the longest of the moves. Bytes that no move names are lost. Gradients that keep
// their order are moved once or twice. A complete reversal moves up to size^2 / (2 * scratch_bytes) bytes.
void relayout(std::byte* memory, std::vector<Move> moves, std::byte* scratch, uint64_t scratch_bytes);

}  // namespace weft
