// The paths that read peers' buffers in place. Buffers in arenas are mapped in this process. Buffers in
// private memory are copied by process_vm_readv, or simply read, where ranks are threads of one process. No
// rank ever writes into another process's private memory: a late writer would corrupt it
// after the operation has failed. Called by the lane under the progress lock.
#include "remote.h"

namespace weft::shm {
namespace {

// Any collective whose inputs can be read in place and whose ranks write only their own results. Excludes an
// in-place all_reduce, where a rank would overwrite what other ranks still read.
class DirectPath final : public RemotePath {
 public:
  using RemotePath::RemotePath;
  const char* name() const override { return reach_ == Reach::kMapped ? "mapped" : "pulled"; }

  Status begin(const Operation& op, Rounds* rounds) override {
    part_ = view_part(op);
    *rounds = {divide_up(op.bytes, part_), false, false, true, part_ * static_cast<uint64_t>(op.size)};
    WEFT_TRY(prepare_scratch());
    return reach_sources(op);
  }

  Status out(const Operation& op, uint64_t round) override {
    struct Source {
      DirectPath& path;
      const Operation& op;
      uint64_t skip;
      Status view(int peer, uint64_t bytes, const std::byte** at) {
        return path.sources_.view(path.context_.group, peer, skip, bytes, path.scratch(op, peer, path.part_),
                                  at);
      }
      Status copy(int peer, uint64_t bytes, std::byte* to) {
        return path.sources_.copy(path.context_.group, peer, skip, bytes, to);
      }
    };
    const Range range = part_of(op.bytes, part_, round);
    return take_range(context_.group, op, range.offset, range.bytes, context_.inputs.data(),
                      Source{*this, op, op.wanted() + range.offset});
  }

 private:
  uint64_t part_ = 0;
};

// all_reduce on arenas: the owner of a slice reads it from all ranks and writes the result to all ranks. Each
// byte is loaded once and stored once, which is the least traffic possible.
class OwnerPath final : public RemotePath {
 public:
  explicit OwnerPath(PathContext& context) : RemotePath(context, Reach::kMapped) {}
  const char* name() const override { return "owner"; }

  Status begin(const Operation& op, Rounds* rounds) override {
    *rounds = {divide_up(owner_slice(op.bytes, op.size), kMappedPart), false, true, false,
               kMappedPart * static_cast<uint64_t>(op.size),           true};
    next_slice_ = 0;
    WEFT_TRY(reach_sources(op));
    return reach_targets(op);
  }

  Status mid(const Operation& op, uint64_t round) override {
    const Range own = owned_by(op.rank, op.bytes, op.size);
    const Range part = part_of(own.bytes, kMappedPart, round);
    if (part.bytes == 0) return {};
    const uint64_t skip = own.offset + part.offset;
    Group& group = context_.group;
    const InputSlices* const slices = op.args.slices;
    for (int r = 0; r < op.size; r++) {
      const auto at = static_cast<size_t>(r);
      WEFT_TRY(targets_.target(group, r, skip, part.bytes, &context_.outputs[at]));
      if (slices != nullptr && r == op.rank) continue;
      WEFT_TRY(sources_.view(group, r, skip, part.bytes, nullptr, &context_.inputs[at]));
    }
    if (slices != nullptr) return fold_slices(op, skip, part.bytes);
    fold(group, op, context_.inputs.data(), context_.outputs.data(), op.size, part.bytes);
    return {};
  }

 private:
  // Folds bytes [at, at + bytes). Parts of this rank's input are outside src (InputSlices). Needs
  // InputSlices' mutex (enter_peers).
  Status fold_slices(const Operation& op, uint64_t at, uint64_t bytes) {
    const InputSlices& slices = *op.args.slices;
    for (const uint64_t end = at + bytes; at < end;) {
      while (next_slice_ < slices.parts.size() && end_of(op, slices.parts[next_slice_]) <= at) next_slice_++;
      const InputSlices::Part* part =
          next_slice_ < slices.parts.size() ? &slices.parts[next_slice_] : nullptr;
      const uint64_t begin = part == nullptr ? end : std::min(end, part->first * op.element);
      const uint64_t count = (at < begin ? begin : std::min(end, end_of(op, *part))) - at;
      const std::byte** const own = &context_.inputs[static_cast<size_t>(op.rank)];
      if (at < begin) {
        WEFT_TRY(sources_.view(context_.group, op.rank, at, count, nullptr, own));
      } else {
        *own = part->memory + (at - part->first * op.element);
      }
      fold(context_.group, op, context_.inputs.data(), context_.outputs.data(), op.size, count,
           slices.streaming);
      for (const std::byte*& input : context_.inputs) input += count;
      for (std::byte*& output : context_.outputs) output += count;
      at += count;
    }
    return {};
  }
  static uint64_t end_of(const Operation& op, const InputSlices::Part& part) {
    return (part.first + part.count) * op.element;
  }

  size_t next_slice_ = 0;  // index of the first part outside src that is not folded
};

// all_reduce of private memory. The owner of a slice pulls the peers' inputs chunk by chunk, so that they
// stay in its cache, and folds them into its own result. The other ranks pull that result.
class OwnerPulledPath final : public RemotePath {
 public:
  explicit OwnerPulledPath(PathContext& context) : RemotePath(context, Reach::kPulled) {}
  const char* name() const override { return "owner-pulled"; }

  Status begin(const Operation& op, Rounds* rounds) override {
    slice_ = slice_bytes(op.bytes, op.size, kPage);
    part_ = view_part(op);
    *rounds = {divide_up(slice_, part_), false, true, true, part_ * static_cast<uint64_t>(op.size)};
    WEFT_TRY(prepare_scratch());
    WEFT_TRY(reach_sources(op));
    return reach_targets(op);
  }

  Status mid(const Operation& op, uint64_t round) override {
    const Range range = part(op, op.rank, round);
    if (range.bytes == 0) return {};
    for (int r = 0; r < op.size; r++) {
      const std::byte** const input = &context_.inputs[static_cast<size_t>(r)];
      *input = op.args.src + range.offset;
      if (r == op.rank) continue;
      WEFT_TRY(sources_.view(context_.group, r, range.offset, range.bytes, scratch(op, r, part_), input));
    }
    std::byte* const output = op.args.dst + range.offset;
    fold(context_.group, op, context_.inputs.data(), &output, 1, range.bytes);
    return {};
  }

  Status out(const Operation& op, uint64_t round) override {
    for (int r = 0; r < op.size; r++) {
      if (r == op.rank) continue;
      const Range range = part(op, r, round);
      WEFT_TRY(targets_.copy(context_.group, r, range.offset, range.bytes, op.args.dst + range.offset));
    }
    return {};
  }

 private:
  Range part(const Operation& op, int owner, uint64_t round) const {
    const Range slice = part_of(op.bytes, slice_, static_cast<uint64_t>(owner));
    const Range range = part_of(slice.bytes, part_, round);
    return {slice.offset + range.offset, range.bytes};
  }
  uint64_t slice_ = 0;
  uint64_t part_ = 0;
};

}  // namespace

std::unique_ptr<Path> make_mapped(PathContext& context) {
  return std::make_unique<DirectPath>(context, Reach::kMapped);
}
std::unique_ptr<Path> make_pulled(PathContext& context) {
  return std::make_unique<DirectPath>(context, Reach::kPulled);
}
std::unique_ptr<Path> make_owner(PathContext& context) {
  return std::make_unique<OwnerPath>(context);
}
std::unique_ptr<Path> make_owner_pulled(PathContext& context) {
  return std::make_unique<OwnerPulledPath>(context);
}

}  // namespace weft::shm
