// all_reduce on arenas of ranks on several NUMA nodes, with equally many on each. The ranks of a node add up
// their inputs among themselves, and only the nodes' sums cross between nodes. With k nodes and vectors of S
// bytes, 2 (k - 1) S bytes cross. The owners of slices (direct.cpp) would move 2 n (k - 1) / k S bytes
// between nodes. A node's sum is rounded to the type. Results have the same bits on all ranks, but not those
// of a fold in rank order, so ordered operations do not use this path. Called by the lane under the progress
// lock.
#include <algorithm>
#include <cassert>

#include "remote.h"

namespace weft::shm {
namespace {

// The vector is cut into as many slices as a node has ranks, and a slice into rounds. The holders of a slice
// are the ranks with its index in their nodes; each reduces the slice for its node. In a round:
//
//   in   a holder folds the inputs of its node's ranks into its own result
//   mid  it folds its part of the holders' results, one part for each node, and writes it to all of them
//   out  it writes the complete result to the other ranks of its node
//
// All ranks synchronise between the stages. Only the holder in a rank's own node reads a range of that rank's
// input or writes that range of its result. The exception is mid, where each part belongs to one of the
// holders. So no range is written while another rank reads it.
class TwoLevelPath final : public RemotePath {
 public:
  explicit TwoLevelPath(PathContext& context) : RemotePath(context, Reach::kMapped) {}
  const char* name() const override { return "two-level"; }

  Status begin(const Operation& op, Rounds* rounds) override {
    assert(op.args.slices ==
           nullptr);  // this path does not support in-place slices (Collectives::in_place_slice)
    const int most = std::max(nodes().width(), nodes().count());
    slice_ = owner_slice(op.bytes, nodes().width());
    *rounds = {
        divide_up(slice_, kMappedPart), true, true, true, kMappedPart * static_cast<uint64_t>(most), true};
    WEFT_TRY(reach_sources(op));
    return reach_targets(op);
  }

  Status in(const Operation& op, uint64_t round) override {
    const Range part = part_of_round(op, round);
    if (part.bytes == 0) return {};
    int inputs = 0;
    for (const int r : node_of(op)) WEFT_TRY(view_source(r, part, inputs++));
    WEFT_TRY(view_target(op.rank, part, 0));
    fold_some(op, inputs, 1, part.bytes, true);
    return {};
  }

  Status mid(const Operation& op, uint64_t round) override {
    const Range part = part_of_round(op, round);
    const Range own = part_of(part.bytes, slice_bytes(part.bytes, nodes().count(), 64),
                              static_cast<uint64_t>(nodes().node_of[static_cast<size_t>(op.rank)]));
    if (own.bytes == 0) return {};
    const Range at{part.offset + own.offset, own.bytes};
    int count = 0;
    for (const std::vector<int>& node : nodes().ranks) {
      const int holder = node[index_of(op)];
      WEFT_TRY(targets_.view(context_.group, holder, at.offset, at.bytes, nullptr,
                             &context_.inputs[static_cast<size_t>(count)]));
      WEFT_TRY(view_target(holder, at, count++));
    }
    fold_some(op, count, count, at.bytes, false);
    return {};
  }

  Status out(const Operation& op, uint64_t round) override {
    const Range part = part_of_round(op, round);
    if (part.bytes == 0) return {};
    const std::byte* own = nullptr;
    WEFT_TRY(targets_.view(context_.group, op.rank, part.offset, part.bytes, nullptr, &own));
    for (const int r : node_of(op)) {
      if (r == op.rank) continue;
      WEFT_TRY(view_target(r, part, 0));
      std::memcpy(context_.outputs[0], own, part.bytes);
    }
    return {};
  }

 private:
  const Nodes& nodes() const { return context_.group.nodes(); }
  size_t index_of(const Operation& op) const {
    return static_cast<size_t>(nodes().index_of[static_cast<size_t>(op.rank)]);
  }
  const std::vector<int>& node_of(const Operation& op) const {
    return nodes().ranks[static_cast<size_t>(nodes().node_of[static_cast<size_t>(op.rank)])];
  }
  Range part_of_round(const Operation& op, uint64_t round) const {
    const Range slice = part_of(op.bytes, slice_, index_of(op));
    const Range part = part_of(slice.bytes, kMappedPart, round);
    return {slice.offset + part.offset, part.bytes};
  }
  Status view_source(int rank, const Range& range, int at) {
    return sources_.view(context_.group, rank, range.offset, range.bytes, nullptr,
                         &context_.inputs[static_cast<size_t>(at)]);
  }
  Status view_target(int rank, const Range& range, int at) {
    return targets_.target(context_.group, rank, range.offset, range.bytes,
                           &context_.outputs[static_cast<size_t>(at)]);
  }
  // Folds the first `inputs` of the context's inputs into its first `outputs`. 16-bit types are scaled before
  // they are first rounded, so that a mean does not overflow. Other types are divided once, at the end.
  void fold_some(const Operation& op, int inputs, int outputs, uint64_t bytes, bool first) const {
    const bool narrow = is_float(op.args.dtype) && op.element == 2;
    FoldArgs args;
    args.dtype = op.args.dtype;
    args.op = op.args.op;
    args.inputs = context_.inputs.data();
    args.input_count = inputs;
    args.outputs = context_.outputs.data();
    args.output_count = outputs;
    args.count = bytes / op.element;
    if (first) args.prescale = op.args.prescale;
    if (first == narrow) args.postscale = op.args.postscale;
    context_.group.host().fold(args);
  }

  uint64_t slice_ = 0;
};

}  // namespace

std::unique_ptr<Path> make_two_level(PathContext& context) {
  return std::make_unique<TwoLevelPath>(context);
}

}  // namespace weft::shm
