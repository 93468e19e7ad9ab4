// How one collective is composed: a constant row of functions, one file a family of collectives. An operation
// is cut into pieces, and each goes through three stages: among the ranks of this host, across hosts, among
// the ranks of this host again. Every stage is an ordinary collective of its group, barriers included: so a
// rank that completes the last one knows that all ranks executed the same call.
//
// Across hosts either the leaders (the first rank of each host) communicate for everybody, or, where hosts
// have equally many ranks, all of them do: each with its counterparts of the same index ("spread").
//
// Called by a lane (lane.h), drive lock held. A stage's function may copy as much as a piece's scratch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/round_up.h"
#include "coll/algorithm.h"
#include "coll/hierarchical/grouping.h"
#include "core/collectives.h"
#include "core/device.h"

namespace weft::coll {

// Elements [begin, begin + count) of the operation's `count`, in every block where there are several.
struct Piece {
  uint64_t begin = 0;
  uint64_t count = 0;
  bool spread = false;
  std::byte* scratch = nullptr;
};

// The operation that stages are parts of.
struct Composed {
  const Grouping& grouping;
  const DeviceOps& host;
  const CollectiveArgs& args;
  uint64_t element;
  std::vector<const std::byte*>& inputs;  // room for one of each rank

  int ranks() const { return grouping.size(); }
  int hosts() const { return grouping.host_count(); }
  int host_index() const { return grouping.host(); }
  int widest() const { return grouping.widest; }
  int root_host() const { return grouping.host_of[static_cast<size_t>(args.peer)]; }
  int root_index() const { return grouping.index_of[static_cast<size_t>(args.peer)]; }
  bool is_root() const { return grouping.rank == args.peer; }
  bool on_root_host() const { return root_host() == host_index(); }
  // Where to find or put the piece of block `block` (a rank; 0 where there is one).
  const std::byte* source(const Piece& piece, int block = 0) const { return args.src + offset(piece, block); }
  std::byte* target(const Piece& piece, int block = 0) const { return args.dst + offset(piece, block); }
  // Bytes of `blocks` pieces.
  uint64_t bytes(const Piece& piece, int blocks = 1) const {
    return piece.count * element * static_cast<uint64_t>(blocks);
  }
  // Part of the scratch, after `blocks` pieces in earlier parts (`part` of them). Parts begin on cache lines.
  std::byte* part(const Piece& piece, int part, int blocks_before) const {
    return piece.scratch + round_up(bytes(piece, blocks_before), kCacheLine) +
           static_cast<uint64_t>(part) * kCacheLine;
  }
  // 16-bit partial sums are scaled before they could overflow; others once, at the end.
  bool narrow() const { return is_float(args.dtype) && element == 2; }
  // src and dst lie on a device, where stages inside the host work (on scratch as well). Then no function of
  // a recipe may touch them.
  bool on_device() const { return args.device != nullptr; }
  // What the leader hands out from its scratch, given by others. On devices they give scratch too, which is
  // not read: NCCL wants to be given memory that is registered with it by all ranks of a collective or by
  // none.
  const std::byte* not_leaders(const Piece& piece) const { return on_device() ? piece.scratch : nullptr; }

 private:
  uint64_t offset(const Piece& piece, int block) const {
    return (static_cast<uint64_t>(block) * args.count + piece.begin) * element;
  }
};

// Whether pieces are spread where hosts are even: each is, or long ones are, in slices (all_reduce: a piece
// is as many slices as a host has ranks).
enum class Spreads : uint8_t { kNever, kPieces, kSlices };

struct Recipe {
  Spreads spreads;
  // How many pieces' (slices') worth of scratch a piece needs.
  int (*scratch_blocks)(const Composed& op, bool spread);
  // Stages are given with the operation's dtype and as barriers.
  void (*inside)(const Composed& op, const Piece& piece, CollectiveArgs* stage);
  void (*across)(const Composed& op, const Piece& piece, CollectiveArgs* stage);
  void (*back)(const Composed& op, const Piece& piece, CollectiveArgs* stage);
  // After the last stage; may be null.
  void (*done)(const Composed& op, const Piece& piece);
};

// Sums of 16 bits that are short enough to travel as f32.
inline bool widens(const CollectiveArgs& args) {
  const uint64_t element = dtype_size(args.dtype);
  return is_reduction(args.coll) && is_float(args.dtype) && element == 2 &&
         args.count * element <= kSmallBytes;
}

// Not for send and receive, which are not composed.
const Recipe& recipe_of(const CollectiveArgs& args);

// For recipes: fill in a stage.
inline void set(CollectiveArgs* stage, Coll coll, uint64_t count, const std::byte* src, std::byte* dst,
                int root = 0) {
  stage->coll = coll;
  stage->count = count;
  stage->src = src;
  stage->dst = dst;
  stage->peer = root;
}
inline void set_op(const Composed& op, CollectiveArgs* stage, bool first) {
  stage->op = op.args.op;
  if (first) stage->prescale = op.args.prescale;
  if (first == op.narrow()) stage->postscale = op.args.postscale;
}

// The inputs of all ranks, folded in their order and scaled once. input(rank): where a rank's is.
template <class Input>
void fold_ranks(const Composed& op, uint64_t count, std::byte* to, Input&& input) {
  for (int r = 0; r < op.ranks(); r++) op.inputs[static_cast<size_t>(r)] = input(r);
  FoldArgs fold;
  fold.dtype = op.args.dtype;
  fold.op = op.args.op;
  fold.inputs = op.inputs.data();
  fold.input_count = op.ranks();
  fold.outputs = &to;
  fold.output_count = 1;
  fold.count = count;
  fold.prescale = op.args.prescale;
  fold.postscale = op.args.postscale;
  op.host.fold(fold);
}

const Recipe& all_reduce_recipe();
const Recipe& ordered_all_reduce_recipe();
const Recipe& reduce_recipe();
const Recipe& ordered_reduce_recipe();
const Recipe& reduce_scatter_recipe();
const Recipe& ordered_reduce_scatter_recipe();
const Recipe& broadcast_recipe();
const Recipe& device_broadcast_recipe();
const Recipe& all_gather_recipe();
const Recipe& gather_recipe();
const Recipe& scatter_recipe();
const Recipe& all_to_all_recipe();
const Recipe& barrier_recipe();

}  // namespace weft::coll
