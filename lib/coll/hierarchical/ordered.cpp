// all_reduce and reduce with the same bits for any distribution over hosts. Inputs are sent whole, and one
// rank folds each element in the order of all ranks. A host sends as many inputs across hosts as it has
// ranks, where partial sums would be one.
//
//   spread: each rank gets a slice of its host's inputs, exchanges it with its counterparts, and folds
//   else:   the leaders gather, exchange and fold
#include "coll/hierarchical/blocks.h"
#include "coll/hierarchical/hierarchical_plan.h"

namespace weft::coll {
namespace {

uint64_t slice_of(const Composed& op, const Piece& piece) {
  return piece.count / static_cast<uint64_t>(op.widest());
}

// Returns the blocks of scratch. If spread: the slices of this host's ranks, those of all ranks, and the
// result. Otherwise the inputs of all ranks and the result.
int ordered_blocks(const Composed& op, bool spread) {
  return row_blocks(op) + 1 + (spread ? op.widest() : 0);
}
std::byte* row(const Composed& op, const Piece& piece) {
  return piece.spread ? op.part(piece, 1, 1) : piece.scratch;
}
std::byte* folded(const Composed& op, const Piece& piece) {
  return piece.spread ? op.part(piece, 2, 1 + op.hosts()) : op.part(piece, 1, row_blocks(op));
}

void fold_row(const Composed& op, const Piece& piece, uint64_t count) {
  const std::byte* const first = row(op, piece);
  fold_ranks(op, count, folded(op, piece), [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    const int block = op.grouping.host_of[r] * op.widest() + op.grouping.index_of[r];
    return first + static_cast<uint64_t>(block) * count * op.element;
  });
}

void ordered_inside(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) {
    return set(stage, Coll::kAllToAll, slice_of(op, piece), op.source(piece), piece.scratch);
  }
  set(stage, Coll::kGather, piece.count, op.source(piece),
      op.grouping.is_leader() ? host_blocks(op, piece, row(op, piece)) : nullptr);
}

void ordered_across(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) {
    return set(stage, Coll::kAllGather, piece.count, piece.scratch, row(op, piece));
  }
  set(stage, Coll::kAllGather, piece.count * static_cast<uint64_t>(op.widest()),
      host_blocks(op, piece, row(op, piece)), row(op, piece));
}

void ordered_back(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  const bool folds = piece.spread || op.grouping.is_leader();
  const uint64_t count = piece.spread ? slice_of(op, piece) : piece.count;
  if (folds) fold_row(op, piece, count);
  set(stage, piece.spread ? Coll::kAllGather : Coll::kBroadcast, count, folds ? folded(op, piece) : nullptr,
      op.target(piece));
}

// reduce: the leader of the root's host folds, and passes the result through its host if it is not the root.

void ordered_across_to_root(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  set(stage, Coll::kGather, piece.count * static_cast<uint64_t>(op.widest()),
      host_blocks(op, piece, row(op, piece)), op.on_root_host() ? row(op, piece) : nullptr, op.root_host());
}

void ordered_back_to_root(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (!op.on_root_host()) return;
  const bool leader = op.grouping.is_leader();
  if (leader) fold_row(op, piece, piece.count);
  if (op.root_index() == 0) return;
  set(stage, Coll::kBroadcast, piece.count, leader ? folded(op, piece) : nullptr,
      op.is_root() ? op.target(piece) : folded(op, piece));
}

void ordered_at_root(const Composed& op, const Piece& piece) {
  if (op.is_root() && op.grouping.is_leader()) {
    std::memcpy(op.target(piece), folded(op, piece), op.bytes(piece));
  }
}

}  // namespace

const HierarchicalPlan& ordered_reduce_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kNever,        ordered_blocks,       ordered_inside,
                                         ordered_across_to_root, ordered_back_to_root, ordered_at_root};
  return kRow;
}

const HierarchicalPlan& ordered_all_reduce_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kSlices, ordered_blocks, ordered_inside,
                                         ordered_across,   ordered_back,   nullptr};
  return kRow;
}

}  // namespace weft::coll
