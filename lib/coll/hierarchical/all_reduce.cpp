// all_reduce and reduce: partial sums in each host, then sums across hosts.
//
//   spread: each rank reduces a slice of its host's sums with its counterparts, then all gather the slices
//   else:   the leaders reduce their hosts' sums
//
// 16-bit floats are rounded after the first stage and after the second. Short ones are sent as f32 and
// rounded once.
#include "coll/algorithm.h"
#include "coll/hierarchical/hierarchical_plan.h"

namespace weft::coll {
namespace {

bool widened(const Composed& op) {
  return widens(op.args) && !op.on_device();
}

// Returns the blocks of scratch. Widened operations need five: two for the input in f32, two for its sums in
// f32, and one for the rounded result.
int blocks(const Composed& op, bool spread) {
  return widened(op) && !spread ? 5 : 1;
}
std::byte* sums(const Composed& op, const Piece& piece) {
  return widened(op) && !piece.spread ? op.part(piece, 1, 2) : piece.scratch;
}
std::byte* rounded(const Composed& op, const Piece& piece) {
  return widened(op) ? op.part(piece, 2, 4) : piece.scratch;
}

void convert(const Composed& op, const std::byte* from, Dtype from_dtype, std::byte* to, Dtype to_dtype,
             uint64_t count) {
  CopyArgs copy;
  copy.src = from;
  copy.dst = to;
  copy.count = count;
  copy.src_dtype = from_dtype;
  copy.dst_dtype = to_dtype;
  op.host.copy(copy);
}

// First stage: reduces the inputs of the host's ranks to the leader.
void reduce_inside(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  set(stage, Coll::kReduce, piece.count, op.source(piece),
      op.grouping.is_leader() ? sums(op, piece) : nullptr);
  set_op(op, stage, true);
  if (!widened(op)) return;
  convert(op, op.source(piece), op.args.dtype, piece.scratch, Dtype::kF32, piece.count);
  stage->dtype = Dtype::kF32;
  stage->src = piece.scratch;
}

void inside(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (!piece.spread) return reduce_inside(op, piece, stage);
  const uint64_t slice = piece.count / static_cast<uint64_t>(op.widest());
  set(stage, Coll::kReduceScatter, slice, op.source(piece), piece.scratch);
  set_op(op, stage, true);
}

void across(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  const uint64_t count = piece.spread ? piece.count / static_cast<uint64_t>(op.widest()) : piece.count;
  set(stage, Coll::kAllReduce, count, sums(op, piece), sums(op, piece));
  set_op(op, stage, false);
  if (widened(op) && !piece.spread) stage->dtype = Dtype::kF32;
}

void back(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (piece.spread) {
    const uint64_t slice = piece.count / static_cast<uint64_t>(op.widest());
    return set(stage, Coll::kAllGather, slice, piece.scratch, op.target(piece));
  }
  const bool leader = op.grouping.is_leader();
  if (leader && widened(op)) {
    convert(op, sums(op, piece), Dtype::kF32, rounded(op, piece), op.args.dtype, piece.count);
  }
  set(stage, Coll::kBroadcast, piece.count, leader ? rounded(op, piece) : op.not_leaders(piece),
      op.target(piece));
}

// reduce: to the leader of the root's host, then through that host if the leader is not the root or the
// buffer is on a device.

void across_to_root(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  set(stage, Coll::kReduce, piece.count, sums(op, piece), op.on_root_host() ? sums(op, piece) : nullptr,
      op.root_host());
  set_op(op, stage, false);
  if (widened(op)) stage->dtype = Dtype::kF32;
}

void back_to_root(const Composed& op, const Piece& piece, CollectiveArgs* stage) {
  if (!op.on_root_host()) return;
  const bool leader = op.grouping.is_leader();
  if (leader && widened(op)) {
    convert(op, sums(op, piece), Dtype::kF32, rounded(op, piece), op.args.dtype, piece.count);
  }
  if (op.root_index() == 0 && !op.on_device()) return;
  std::byte* const to = op.is_root() ? op.target(piece) : rounded(op, piece);
  const std::byte* const from = op.on_device() ? rounded(op, piece) : to;
  set(stage, Coll::kBroadcast, piece.count, leader ? from : op.not_leaders(piece), to);
}

void at_root(const Composed& op, const Piece& piece) {
  if (op.is_root() && op.grouping.is_leader() && !op.on_device()) {
    std::copy_n(rounded(op, piece), op.bytes(piece), op.target(piece));
  }
}

}  // namespace

const HierarchicalPlan& all_reduce_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kSlices, blocks, inside, across, back, nullptr};
  return kRow;
}

const HierarchicalPlan& reduce_plan() {
  static constexpr HierarchicalPlan kRow{Spreads::kNever, blocks,       reduce_inside,
                                         across_to_root,  back_to_root, at_root};
  return kRow;
}

}  // namespace weft::coll
