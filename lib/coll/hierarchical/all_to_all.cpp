// all_gather, reduce_scatter and all_to_all.
//
//   spread: each rank exchanges the blocks of its index with its counterparts, and shares them in its host
//   else:   the leaders gather, exchange and scatter
#include "coll/hierarchical/blocks.h"
#include "coll/hierarchical/hierarchical_plan.h"

namespace weft::coll {
namespace {

uint64_t count_of(const Piece& piece, int blocks) {
  return piece.count * static_cast<uint64_t>(blocks);
}

// These are the steps of all_gather. If spread, the scratch holds the counterparts' pieces, then those of all
// ranks.

int all_gather_blocks(const Composed& op, bool spread) {
  return row_blocks(op) + (spread ? op.hosts() : 0);
}

void all_gather_inside(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) return;
  set(stage, Coll::kGather, piece.count, op.source(piece),
      op.grouping.is_leader() ? host_blocks(op, piece, piece.scratch) : nullptr);
}

void all_gather_across(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) return set(stage, Coll::kAllGather, piece.count, op.source(piece), piece.scratch);
  set(stage, Coll::kAllGather, count_of(piece, op.widest()), host_blocks(op, piece, piece.scratch),
      piece.scratch);
}

void all_gather_back(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) {
    return set(stage, Coll::kAllGather, count_of(piece, op.hosts()), piece.scratch,
               op.part(piece, 1, op.hosts()));
  }
  set(stage, Coll::kBroadcast, count_of(piece, row_blocks(op)), nullptr, piece.scratch);
}

void all_gathered(const Composed& op, const Piece& piece) {
  if (!piece.spread) return unpack(op, piece, piece.scratch);
  std::byte* const row = op.part(piece, 1, op.hosts());
  for (int r = 0; r < op.ranks(); r++) {
    std::memcpy(op.target(piece, r), spread_place_of(op, piece, row, r), op.bytes(piece));
  }
}

// These are the steps of reduce_scatter.

int reduce_scatter_blocks(const Composed& op, bool spread) {
  return row_blocks(op) + (spread ? op.hosts() : row_blocks(op));
}

std::byte* partial(const Composed& op, const Piece& piece) {
  return op.part(piece, 1, row_blocks(op));
}

void reduce_scatter_inside(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) {
    spread_pack(op, piece, piece.scratch);
    set(stage, Coll::kReduceScatter, count_of(piece, op.hosts()), piece.scratch, partial(op, piece));
  } else {
    pack(op, piece, piece.scratch);
    set(stage, Coll::kReduce, count_of(piece, row_blocks(op)), piece.scratch,
        op.grouping.is_leader() ? partial(op, piece) : nullptr);
  }
  set_op(op, stage, true);
}

void reduce_scatter_across(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  std::byte* const sums = partial(op, piece);
  if (piece.spread) {
    set(stage, Coll::kReduceScatter, piece.count, sums, op.target(piece));
  } else {
    set(stage, Coll::kReduceScatter, count_of(piece, op.widest()), sums, host_blocks(op, piece, sums));
  }
  set_op(op, stage, false);
}

void reduce_scatter_back(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) return;
  set(stage, Coll::kScatter, piece.count,
      op.grouping.is_leader() ? host_blocks(op, piece, partial(op, piece)) : nullptr, op.target(piece));
}

// These are the steps of all_to_all. Comments show the order of blocks in memory: [host][sender there] means
// by host, then by sending rank of that host. If spread, the rank of each index collects its host's blocks
// for the counterparts of that index and sends them there. Otherwise the leader has the host's matrix of
// blocks.

int all_to_all_blocks(const Composed& op, bool spread) {
  return row_blocks(op) * (spread ? 2 : 1 + 2 * op.widest());
}

std::byte* second(const Composed& op, const Piece& piece) {
  return op.part(piece, 1, row_blocks(op));
}
std::byte* third(const Composed& op, const Piece& piece) {
  return op.part(piece, 2, row_blocks(op) * (1 + op.widest()));
}

void all_to_all_inside(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) {
    spread_pack(op, piece, piece.scratch);
    return set(stage, Coll::kAllToAll, count_of(piece, op.hosts()), piece.scratch, second(op, piece));
  }
  pack(op, piece, piece.scratch);
  set(stage, Coll::kGather, count_of(piece, row_blocks(op)), piece.scratch,
      op.grouping.is_leader() ? second(op, piece) : nullptr);
}

void all_to_all_across(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  const int width = op.widest();
  if (piece.spread) {
    // From [sender here][host] to [host][sender here].
    transpose(second(op, piece), piece.scratch, width, op.hosts(), op.bytes(piece));
    return set(stage, Coll::kAllToAll, count_of(piece, width), piece.scratch, second(op, piece));
  }
  // From [sender here][host][receiver there] to [host][sender here][receiver there].
  transpose(second(op, piece), third(op, piece), width, op.hosts(), op.bytes(piece, width));
  set(stage, Coll::kAllToAll, count_of(piece, width * width), third(op, piece), second(op, piece));
}

void all_to_all_back(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) return;
  const bool leader = op.grouping.is_leader();
  // From [host][sender there][receiver here] to [receiver here][host][sender there].
  if (leader) {
    transpose(second(op, piece), third(op, piece), row_blocks(op), op.widest(), op.bytes(piece));
  }
  set(stage, Coll::kScatter, count_of(piece, row_blocks(op)), leader ? third(op, piece) : nullptr,
      piece.scratch);
}

void all_exchanged(const Composed& op, const Piece& piece) {
  // If spread, the order is [host][sender there] as well.
  unpack(op, piece, piece.spread ? second(op, piece) : piece.scratch);
}

// Ordered reduce_scatter: all blocks go to their owner, which folds them.
void fold_exchanged(const Composed& op, const Piece& piece) {
  std::byte* const row = piece.spread ? second(op, piece) : piece.scratch;
  fold_ranks(op, piece.count, op.target(piece), [&](int rank) { return place_of(op, piece, row, rank); });
}

}  // namespace

const HierarchicalPlan& all_gather_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kPieces,  all_gather_blocks, all_gather_inside,
                                         all_gather_across, all_gather_back,   all_gathered};
  return kRow;
}

const HierarchicalPlan& reduce_scatter_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kPieces,      reduce_scatter_blocks, reduce_scatter_inside,
                                         reduce_scatter_across, reduce_scatter_back,   nullptr};
  return kRow;
}

const HierarchicalPlan& ordered_reduce_scatter_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kPieces,  all_to_all_blocks, all_to_all_inside,
                                         all_to_all_across, all_to_all_back,   fold_exchanged};
  return kRow;
}

const HierarchicalPlan& all_to_all_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kPieces,  all_to_all_blocks, all_to_all_inside,
                                         all_to_all_across, all_to_all_back,   all_exchanged};
  return kRow;
}

}  // namespace weft::coll
