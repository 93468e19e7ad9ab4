// broadcast, gather and scatter: through the leaders. On the way, blocks are ordered by host.
#include "coll/hierarchical/blocks.h"
#include "coll/hierarchical/hierarchical_plan.h"

namespace weft::coll {
namespace {

int all_blocks(const Composed& op, bool) {
  return row_blocks(op);
}

// broadcast: on the root's host first. The root may pass the buffer as src or dst.

std::byte* buffer(const Composed& op, const Piece& piece) {
  if (op.args.dst != nullptr) return op.target(piece);
  return const_cast<std::byte*>(op.source(piece));  // the root's buffer, which is only read
}

void from_root(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (!op.on_root_host()) return;
  const bool given = op.is_root() && op.args.src != nullptr;
  set(stage, Coll::kBroadcast, piece.count, given ? op.source(piece) : nullptr,
      op.args.dst != nullptr ? op.target(piece) : nullptr, op.root_index());
}

void broadcast_across(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  set(stage, Coll::kBroadcast, piece.count, buffer(op, piece), buffer(op, piece), op.root_host());
  if (op.is_root() && op.args.src != nullptr)
    stage->src = stage->dst = const_cast<std::byte*>(op.source(piece));
}

void broadcast_back(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (op.on_root_host()) return;
  set(stage, Coll::kBroadcast, piece.count, nullptr, op.target(piece));
}

// broadcast on devices: the leaders exchange scratch memory, and the root's data goes through it too.

int one_block(const Composed&, bool) {
  return 1;
}

void scratch_from_root(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (!op.on_root_host()) return;
  const std::byte* from = nullptr;
  if (op.is_root()) from = op.args.src != nullptr ? op.source(piece) : op.target(piece);
  set(stage, Coll::kBroadcast, piece.count, from, piece.scratch, op.root_index());
}

void scratch_across(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  set(stage, Coll::kBroadcast, piece.count, piece.scratch, piece.scratch, op.root_host());
}

// The root reads its own buffer. It writes a buffer only if it passed a different one as dst.
void scratch_back(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  const bool keeps = op.is_root() && (op.args.dst == nullptr || op.args.dst == op.args.src);
  set(stage, Coll::kBroadcast, piece.count, piece.scratch, keeps ? piece.scratch : op.target(piece));
}

// These are the steps of gather.

void gather_inside(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  set(stage, Coll::kGather, piece.count, op.source(piece),
      op.grouping.is_leader() ? host_blocks(op, piece, piece.scratch) : nullptr);
}

void gather_across(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  set(stage, Coll::kGather, piece.count * static_cast<uint64_t>(op.widest()),
      host_blocks(op, piece, piece.scratch), op.on_root_host() ? piece.scratch : nullptr, op.root_host());
}

void gather_back(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (!op.on_root_host() || op.root_index() == 0) return;
  set(stage, Coll::kBroadcast, piece.count * static_cast<uint64_t>(all_blocks(op, false)), nullptr,
      piece.scratch);
}

void gathered(const Composed& op, const Piece& piece) {
  if (op.is_root()) unpack(op, piece, piece.scratch);
}

// These are the steps of scatter.

void scatter_inside(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (op.is_root()) pack(op, piece, piece.scratch);
  if (!op.on_root_host() || op.root_index() == 0) return;
  set(stage, Coll::kBroadcast, piece.count * static_cast<uint64_t>(all_blocks(op, false)), nullptr,
      piece.scratch, op.root_index());
}

void scatter_across(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  set(stage, Coll::kScatter, piece.count * static_cast<uint64_t>(op.widest()),
      op.on_root_host() ? piece.scratch : nullptr, host_blocks(op, piece, piece.scratch), op.root_host());
}

void scatter_back(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  set(stage, Coll::kScatter, piece.count,
      op.grouping.is_leader() ? host_blocks(op, piece, piece.scratch) : nullptr, op.target(piece));
}

}  // namespace

const HierarchicalPlan& broadcast_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kNever,  no_scratch,     from_root,
                                         broadcast_across, broadcast_back, nullptr};
  return kRow;
}

const HierarchicalPlan& device_broadcast_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kNever, one_block,    scratch_from_root,
                                         scratch_across,  scratch_back, nullptr};
  return kRow;
}

const HierarchicalPlan& gather_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kNever, all_blocks,  gather_inside,
                                         gather_across,   gather_back, gathered};
  return kRow;
}

const HierarchicalPlan& scatter_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kNever, all_blocks,   scatter_inside,
                                         scatter_across,  scatter_back, nullptr};
  return kRow;
}

}  // namespace weft::coll
