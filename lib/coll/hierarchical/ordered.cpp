// all_reduce with the same bits on any hosts: inputs travel whole, and one rank folds an element in the order
// of all ranks. What goes across hosts is as many inputs as a host has ranks, where partial sums are one.
//   spread: each rank gets a slice of its host's inputs, exchanges it with its counterparts, and folds
//   else:   the leaders gather, exchange and fold
#include "coll/hierarchical/blocks.h"
#include "coll/hierarchical/recipe.h"

namespace weft::coll {
namespace {

int row_blocks(const Composed& op) {
  return op.hosts() * op.widest();
}
uint64_t slice_of(const Composed& op, const Piece& piece) {
  return piece.count / static_cast<uint64_t>(op.widest());
}

// Spread: the slices of this host's ranks, those of all ranks, and the result. Else: the last two.
int blocks(const Composed& op, bool spread) {
  return row_blocks(op) + 1 + (spread ? op.widest() : 0);
}
std::byte* row(const Composed& op, const Piece& piece) {
  return piece.spread ? op.part(piece, 1, 1) : piece.scratch;
}
std::byte* folded(const Composed& op, const Piece& piece) {
  return piece.spread ? op.part(piece, 2, 1 + op.hosts()) : op.part(piece, 1, row_blocks(op));
}

void inside(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) {
    return set(stage, Coll::kAllToAll, slice_of(op, piece), op.source(piece), piece.scratch);
  }
  set(stage, Coll::kGather, piece.count, op.source(piece),
      op.grouping.is_leader() ? host_blocks(op, piece, row(op, piece)) : nullptr);
}

void across(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) {
    return set(stage, Coll::kAllGather, piece.count, piece.scratch, row(op, piece));
  }
  set(stage, Coll::kAllGather, piece.count * static_cast<uint64_t>(op.widest()),
      host_blocks(op, piece, row(op, piece)), row(op, piece));
}

void back(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  const bool folds = piece.spread || op.grouping.is_leader();
  const uint64_t count = piece.spread ? slice_of(op, piece) : piece.count;
  if (folds) {
    const std::byte* const first = row(op, piece);
    fold_ranks(op, count, folded(op, piece), [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      const int block = op.grouping.host_of[r] * op.widest() + op.grouping.index_of[r];
      return first + static_cast<uint64_t>(block) * count * op.element;
    });
  }
  set(stage, piece.spread ? Coll::kAllGather : Coll::kBroadcast, count, folds ? folded(op, piece) : nullptr,
      op.target(piece));
}

}  // namespace

const Recipe& ordered_all_reduce_recipe() {
  static constexpr Recipe kRow{Spreads::kSlices, blocks, inside, across, back, nullptr};
  return kRow;
}

}  // namespace weft::coll
