// A row holds a piece of every rank's block, ordered by host. Each host has as many slots as the largest host
// has ranks, so that the pieces that one host's ranks exchange with another's are one range.
#pragma once

#include <cstring>

#include "coll/hierarchical/hierarchical_plan.h"

namespace weft::coll {

inline std::byte* place(const Composed& op, const Piece& piece, std::byte* row, int host, int index) {
  return row + op.bytes(piece, host * op.widest() + index);
}
// Returns the first slot of this rank's host in a row.
inline std::byte* host_blocks(const Composed& op, const Piece& piece, std::byte* row) {
  return place(op, piece, row, op.host_index(), 0);
}
inline std::byte* place_of(const Composed& op, const Piece& piece, std::byte* row, int rank) {
  const auto r = static_cast<size_t>(rank);
  return place(op, piece, row, op.grouping.host_of[r], op.grouping.index_of[r]);
}

// The operation's source (pack) or target (unpack) has one block for each rank, in rank order.
inline void pack(const Composed& op, const Piece& piece, std::byte* row) {
  for (int r = 0; r < op.ranks(); r++) {
    std::memcpy(place_of(op, piece, row, r), op.source(piece, r), op.bytes(piece));
  }
}
inline void unpack(const Composed& op, const Piece& piece, std::byte* row) {
  for (int r = 0; r < op.ranks(); r++) {
    std::memcpy(op.target(piece, r), place_of(op, piece, row, r), op.bytes(piece));
  }
}

// Returns the slot of a rank in a spread row, which is ordered by index in the host, then by host.
inline std::byte* spread_place_of(const Composed& op, const Piece& piece, std::byte* row, int rank) {
  const auto r = static_cast<size_t>(rank);
  return row + op.bytes(piece, op.grouping.index_of[r] * op.hosts() + op.grouping.host_of[r]);
}
inline void spread_pack(const Composed& op, const Piece& piece, std::byte* row) {
  for (int r = 0; r < op.ranks(); r++) {
    std::memcpy(spread_place_of(op, piece, row, r), op.source(piece, r), op.bytes(piece));
  }
}

// to[y][x] = from[x][y], for blocks of `bytes`.
inline void transpose(const std::byte* from, std::byte* to, int rows, int columns, uint64_t bytes) {
  for (int x = 0; x < rows; x++) {
    for (int y = 0; y < columns; y++) {
      std::memcpy(to + static_cast<uint64_t>(y * rows + x) * bytes,
                  from + static_cast<uint64_t>(x * columns + y) * bytes, bytes);
    }
  }
}

}  // namespace weft::coll
