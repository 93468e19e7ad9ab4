#include "reducer/plan/relayout.h"

#include <algorithm>
#include <cstring>

namespace weft {
namespace {

// The bytes of a move, with their current position.
struct MovedPiece {
  uint64_t at = 0;
  uint64_t to = 0;
  uint64_t bytes = 0;
  uint64_t end = 0;     // end in the packed new order
  bool parked = false;  // it is in the scratch
};

void move(std::byte* memory, uint64_t from, uint64_t to, uint64_t bytes) {
  if (from != to) std::memmove(memory + to, memory + from, bytes);
}

// Closes the gaps. The pieces are sorted by position, and keep that order.
void pack(std::byte* memory, std::vector<MovedPiece>& pieces) {
  uint64_t at = 0;
  for (MovedPiece& piece : pieces) {
    move(memory, piece.at, at, piece.bytes);
    piece.at = at;
    at += piece.bytes;
  }
}

// Sorts the packed pieces into their new order, from the last one backwards. Each round takes as many pieces
// as the scratch holds out of the row, closes the row, and puts them after it. pieces: by current position;
// order: by new position.
void reorder(std::byte* memory, std::vector<MovedPiece*>& pieces, std::vector<MovedPiece*>& order,
             std::byte* scratch, uint64_t scratch_bytes) {
  for (;;) {
    // Pieces that are last already stay.
    while (!pieces.empty() && pieces.back() == order.back()) {
      pieces.pop_back();
      order.pop_back();
    }
    if (pieces.empty()) return;
    const uint64_t end = order.back()->end;
    uint64_t begin = end;
    while (!order.empty() && end - (order.back()->end - order.back()->bytes) <= scratch_bytes) {
      order.back()->parked = true;
      begin = order.back()->end - order.back()->bytes;
      order.pop_back();
    }
    uint64_t at = 0;
    for (MovedPiece* piece : pieces) {
      if (piece->parked) {
        std::memcpy(scratch + (piece->end - piece->bytes - begin), memory + piece->at, piece->bytes);
        piece->at = piece->end - piece->bytes;
      } else {
        move(memory, piece->at, at, piece->bytes);
        piece->at = at;
        at += piece->bytes;
      }
    }
    std::memcpy(memory + begin, scratch, end - begin);
    std::erase_if(pieces, [](const MovedPiece* piece) { return piece->parked; });
  }
}

}  // namespace

void relayout(std::byte* memory, std::vector<Move> moves, std::byte* scratch, uint64_t scratch_bytes) {
  std::erase_if(moves, [](const Move& m) { return m.bytes == 0; });
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) { return a.from < b.from; });
  std::vector<MovedPiece> all;
  all.reserve(moves.size());
  for (const Move& m : moves) all.push_back({.at = m.from, .to = m.to, .bytes = m.bytes});
  pack(memory, all);
  std::vector<MovedPiece*> pieces;
  pieces.reserve(all.size());
  for (MovedPiece& piece : all) pieces.push_back(&piece);
  std::vector<MovedPiece*> order = pieces;
  std::sort(order.begin(), order.end(),
            [](const MovedPiece* a, const MovedPiece* b) { return a->to < b->to; });
  uint64_t end = 0;
  for (MovedPiece* piece : order) piece->end = end += piece->bytes;
  const std::vector<MovedPiece*> placed = order;
  reorder(memory, pieces, order, scratch, scratch_bytes);
  // In the packed new order no piece is beyond its new position.
  for (size_t i = placed.size(); i-- > 0;) {
    move(memory, placed[i]->end - placed[i]->bytes, placed[i]->to, placed[i]->bytes);
  }
}

}  // namespace weft
