// Moving gradients to other places of the same memory, all at once: what a re-plan does where the new buckets
// fit into the memory of the old ones. Used by Reducer::replan, between steps. Threads: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// Bytes [from, from + bytes) go to [to, to + bytes). Neither the old ranges overlap each other nor the new.
struct Move {
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t bytes = 0;
};

// scratch: room for the longest of the moves, at least. Bytes that are moved nowhere are lost. What keeps its
// order is moved but once or twice; an order that is turned around altogether costs up to
// size^2 / (2 * scratch_bytes) bytes moved.
void relayout(std::byte* memory, std::vector<Move> moves, std::byte* scratch, uint64_t scratch_bytes);

}  // namespace weft
