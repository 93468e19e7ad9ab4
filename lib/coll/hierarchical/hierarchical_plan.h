// Describes how one collective is composed: a constant row of functions, with one file for each family of
// collectives. An operation is cut into pieces. Each piece goes through three stages: among the ranks of this
// host, across hosts, and among the ranks of this host again. Every stage is an ordinary collective of its
// group, possibly a barrier. So a rank that completes the last stage knows that all ranks executed the same
// call.
//
// Two ways lead across hosts. Either the leaders (the first rank of each host) communicate for all ranks. Or,
// where hosts have equally many ranks, every rank communicates with its counterparts, the ranks of the same
// index ("spread").
//
// Called by a lane (lane.h) under the progress lock. A stage's function may copy as many bytes as a piece's
// scratch has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/round_up.h"
#include "coll/algorithm.h"
#include "coll/hierarchical/grouping.h"
#include "device/device.h"
#include "transport/collectives.h"

namespace weft::coll {

// A piece of an operation: elements [begin, begin + count) of the vector, or of every block. spread: every
// rank exchanges a part across hosts, instead of the leaders.
struct Piece {
  uint64_t begin = 0;
  uint64_t count = 0;
  bool spread = false;
  std::byte* scratch = nullptr;
};

// The composed operation whose stages a plan fills in.
struct Composed {
  const Grouping& grouping;
  const DeviceOps& host;
  const CollectiveArgs& args;
  uint64_t element;
  std::vector<const std::byte*>& inputs;  // has room for one of each rank

  int ranks() const { return grouping.size(); }
  int hosts() const { return grouping.host_count(); }
  int host_index() const { return grouping.host(); }
  int widest() const { return grouping.widest; }
  int root_host() const { return grouping.host_of[static_cast<size_t>(args.peer)]; }
  int root_index() const { return grouping.index_of[static_cast<size_t>(args.peer)]; }
  bool is_root() const { return grouping.rank == args.peer; }
  bool on_root_host() const { return root_host() == host_index(); }
  // Return the address of a piece of block `block` in src and in dst. block: a rank; 0 if there is one block.
  const std::byte* source(const Piece& piece, int block = 0) const { return args.src + offset(piece, block); }
  std::byte* target(const Piece& piece, int block = 0) const { return args.dst + offset(piece, block); }
  // Returns the bytes of `blocks` pieces.
  uint64_t bytes(const Piece& piece, int blocks = 1) const {
    return piece.count * element * static_cast<uint64_t>(blocks);
  }
  // Returns part `part` of the scratch. The earlier parts hold `blocks_before` pieces. Parts begin on cache
  // lines.
  std::byte* part(const Piece& piece, int part, int blocks_before) const {
    return piece.scratch + round_up(bytes(piece, blocks_before), kCacheLine) +
           static_cast<uint64_t>(part) * kCacheLine;
  }
  // True for 16-bit floats, whose partial sums are scaled before they could overflow. Other sums are scaled
  // once, at the end.
  bool narrow() const { return is_float(args.dtype) && element == 2; }
  // True if src and dst are device memory. The stages inside the host then run on the device, and scratch is
  // device memory as well, so a plan's functions must not access them from the CPU.
  bool on_device() const { return args.device != nullptr; }
  // Returns the src of a rank that is not the leader, in a stage in which the leader sends its scratch. On
  // devices it is the rank's own scratch, which is not read. NCCL requires that all ranks of a collective
  // pass registered memory, or none does.
  const std::byte* not_leaders(const Piece& piece) const { return on_device() ? piece.scratch : nullptr; }

 private:
  uint64_t offset(const Piece& piece, int block) const {
    return (static_cast<uint64_t>(block) * args.count + piece.begin) * element;
  }
};

// Which pieces are spread where all hosts have equally many ranks: none, all, or long ones in slices. An
// all_reduce has slices: a piece is cut into as many as a host has ranks.
enum class Spreads : uint8_t { kNever, kPieces, kSlices };

struct HierarchicalPlan {
  Spreads spreads;
  // Returns the size of the scratch for one piece, in units of a piece (of a slice, if pieces are spread in
  // slices).
  int (*scratch_blocks)(const Composed& op, bool spread);
  // The stage is passed in as a barrier with the operation's dtype.
  void (*inside)(const Composed& op, const Piece& piece, CollectiveArgs* stage);
  void (*across)(const Composed& op, const Piece& piece, CollectiveArgs* stage);
  void (*back)(const Composed& op, const Piece& piece, CollectiveArgs* stage);
  // Called after the last stage; may be null.
  void (*done)(const Composed& op, const Piece& piece);
};

// True for sums of 16-bit floats that are short enough to be sent as f32.
inline bool widens(const CollectiveArgs& args) {
  const uint64_t element = dtype_size(args.dtype);
  return is_reduction(args.coll) && is_float(args.dtype) && element == 2 &&
         args.count * element <= kSmallBytes;
}

// Returns the plan of a collective. Not called for send and receive, which are not composed.
const HierarchicalPlan& plan_of(const CollectiveArgs& args);

// Returns the number of blocks that hold one input of every rank, if each host has room for the most ranks.
inline int row_blocks(const Composed& op) {
  return op.hosts() * op.widest();
}
// HierarchicalPlan::scratch_blocks of plans that need no scratch memory.
inline int no_scratch(const Composed&, bool) {
  return 0;
}

// Fills in a stage.
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

// Folds the inputs of all ranks in rank order and scales once. input(rank) returns the location of a rank's
// input.
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

const HierarchicalPlan& all_reduce_plan();
const HierarchicalPlan& ordered_all_reduce_plan();
const HierarchicalPlan& reduce_plan();
const HierarchicalPlan& ordered_reduce_plan();
const HierarchicalPlan& reduce_scatter_plan();
const HierarchicalPlan& ordered_reduce_scatter_plan();
const HierarchicalPlan& broadcast_plan();
const HierarchicalPlan& device_broadcast_plan();
const HierarchicalPlan& all_gather_plan();
const HierarchicalPlan& gather_plan();
const HierarchicalPlan& scatter_plan();
const HierarchicalPlan& all_to_all_plan();
const HierarchicalPlan& barrier_plan();

}  // namespace weft::coll
