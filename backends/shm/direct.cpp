// The paths that read peers' buffers where they lie: in arenas, which are mapped here, or in private memory,
// pulled by process_vm_readv (or simply read, where ranks are threads of one process). Nobody ever writes
// into another process's private memory: a late writer would spoil it after the operation has failed. Called
// by the lane, drive lock.
#include "base/text.h"
#include "path.h"

namespace weft::shm {
namespace {

enum class Reach { kMapped, kPulled };
constexpr uint64_t kMappedPart = 256 << 10;

// A buffer of every rank.
class Remote {
 public:
  // Of the peers' buffers at `offset` (mapped) or `address` (pulled): what of them is touched, checked.
  Status add_mapped(Group& group, int rank, uint64_t offset, uint64_t bytes, uint64_t alignment) {
    if (!group.valid_claim(offset, bytes, alignment)) {
      return Status::error(Code::kPeerFailed,
                           cat("rank ", group.name(rank),
                               " claims memory outside its segment: its words in shared memory "
                               "are damaged"),
                           Evidence::kDescriptor)
          .with_ranks({group.name(rank)});
    }
    buffers_.push_back({group.memory(rank, offset), offset, true});
    return {};
  }
  void add_pulled(Group& group, int rank, uint64_t address) {
    auto* const here = group.same_process(rank) ? reinterpret_cast<std::byte*>(address) : nullptr;
    buffers_.push_back({here, address, false});
  }
  void clear() { buffers_.clear(); }

  // Bytes at `skip` of a rank's buffer, to read now; scratch is used if they must be pulled.
  Status view(Group& group, int rank, uint64_t skip, uint64_t bytes, std::byte* scratch,
              const std::byte** at) const {
    const Buffer& buffer = buffers_[static_cast<size_t>(rank)];
    if (buffer.here == nullptr) {
      *at = scratch;
      group.count_direct(bytes);
      return group.read_private(rank, buffer.where + skip, scratch, bytes);
    }
    *at = buffer.here + skip;
    return prepare(group, rank, skip, bytes);
  }
  Status copy(Group& group, int rank, uint64_t skip, uint64_t bytes, std::byte* to) const {
    const Buffer& buffer = buffers_[static_cast<size_t>(rank)];
    if (bytes == 0) return {};
    if (buffer.here == nullptr) {
      group.count_direct(bytes);
      return group.read_private(rank, buffer.where + skip, to, bytes);
    }
    WEFT_TRY(prepare(group, rank, skip, bytes));
    std::memcpy(to, buffer.here + skip, bytes);
    return {};
  }
  // Bytes at `skip` of a mapped buffer, to write.
  Status target(Group& group, int rank, uint64_t skip, uint64_t bytes, std::byte** at) const {
    *at = buffers_[static_cast<size_t>(rank)].here + skip;
    return prepare(group, rank, skip, bytes);
  }

 private:
  struct Buffer {
    std::byte* here;  // null: pull it
    uint64_t where;   // offset in the segment, or address in the process
    bool mapped;
  };
  // Payload statistics, and pages.
  Status prepare(Group& group, int rank, uint64_t skip, uint64_t bytes) const {
    const Buffer& buffer = buffers_[static_cast<size_t>(rank)];
    (buffer.mapped ? group.count_shared(bytes) : group.count_direct(bytes));
    return buffer.mapped ? group.ensure(rank, buffer.where + skip, bytes) : Status();
  }
  std::vector<Buffer> buffers_;
};

class RemotePath : public Path {
 public:
  RemotePath(PathContext& context, Reach reach) : Path(context), reach_(reach) {}

 protected:
  Status reach_sources(const Operation& op) {
    sources_.clear();
    return reach_all(op, op.input_bytes(), &Claims::src_offset, &Claims::src_address, &sources_);
  }
  Status reach_targets(const Operation& op) {
    targets_.clear();
    return reach_all(op, op.bytes, &Claims::dst_offset, &Claims::dst_address, &targets_);
  }
  // Bytes of a round of which every peer's part is viewed at the same time: pulled ones share the staging.
  uint64_t view_part(const Operation& op) const {
    if (reach_ == Reach::kMapped) return kMappedPart;
    const uint64_t part = kStagingBytes / static_cast<uint64_t>(op.size) / 64 * 64;
    return std::min(part, kChunkBytes);
  }
  std::byte* scratch(const Operation& op, int peer, uint64_t part) const {
    return context_.group.memory(op.rank, context_.staging + static_cast<uint64_t>(peer) * part);
  }
  Status prepare_scratch() { return reach_ == Reach::kMapped ? Status() : ensure_staging(); }

  const Reach reach_;
  Remote sources_;
  Remote targets_;

 private:
  Status reach_all(const Operation& op, uint64_t bytes, uint64_t Claims::* offset, uint64_t Claims::* address,
                   Remote* remote) {
    for (int r = 0; r < op.size; r++) {
      const Claims& claims = context_.claims[static_cast<size_t>(r)];
      if (reach_ == Reach::kPulled) {
        remote->add_pulled(context_.group, r, claims.*address);
      } else {
        // The own input is where the call says; only an owner of slices reaches its own arena this way.
        const bool used = op.takes_from(r) && (r != op.rank || op.args.coll == Coll::kAllReduce);
        const uint64_t where = used ? claims.*offset : context_.group.layout().arena;
        WEFT_TRY(remote->add_mapped(context_.group, r, where, used ? bytes : 0, op.element));
      }
    }
    return {};
  }
};

// Any collective whose inputs can be read directly and whose results are each rank's own business. Not
// all_reduce in place: there a rank would overwrite what others still read.
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

// all_reduce on arenas: the owner of a slice reads it everywhere and writes the result everywhere. Each byte
// is loaded once and stored once: the least traffic possible.
class OwnerPath final : public RemotePath {
 public:
  explicit OwnerPath(PathContext& context) : RemotePath(context, Reach::kMapped) {}
  const char* name() const override { return "owner"; }

  Status begin(const Operation& op, Rounds* rounds) override {
    *rounds = {divide_up(owner_slice(op.bytes, op.size), kMappedPart), false, true, false,
               kMappedPart * static_cast<uint64_t>(op.size),           true};
    away_ = 0;
    WEFT_TRY(reach_sources(op));
    return reach_targets(op);
  }

  Status mid(const Operation& op, uint64_t round) override {
    const Range own = owned_by(op.rank, op.bytes, op.size);
    const Range part = part_of(own.bytes, kMappedPart, round);
    if (part.bytes == 0) return {};
    const uint64_t skip = own.offset + part.offset;
    Group& group = context_.group;
    const Away* const away = op.args.away;
    for (int r = 0; r < op.size; r++) {
      const auto at = static_cast<size_t>(r);
      WEFT_TRY(targets_.target(group, r, skip, part.bytes, &context_.outputs[at]));
      if (away != nullptr && r == op.rank) continue;
      WEFT_TRY(sources_.view(group, r, skip, part.bytes, nullptr, &context_.inputs[at]));
    }
    if (away != nullptr) return fold_away(op, skip, part.bytes);
    fold(group, op, context_.inputs.data(), context_.outputs.data(), op.size, part.bytes);
    return {};
  }

 private:
  // Bytes [at, at + bytes), of whose own input parts lie elsewhere. With Away's mutex (enter_peers).
  Status fold_away(const Operation& op, uint64_t at, uint64_t bytes) {
    const Away& away = *op.args.away;
    for (const uint64_t end = at + bytes; at < end;) {
      while (away_ < away.parts.size() && end_of(op, away.parts[away_]) <= at) away_++;
      const Away::Part* part = away_ < away.parts.size() ? &away.parts[away_] : nullptr;
      const uint64_t begin = part == nullptr ? end : std::min(end, part->first * op.element);
      const uint64_t count = (at < begin ? begin : std::min(end, end_of(op, *part))) - at;
      const std::byte** const own = &context_.inputs[static_cast<size_t>(op.rank)];
      if (at < begin) {
        WEFT_TRY(sources_.view(context_.group, op.rank, at, count, nullptr, own));
      } else {
        *own = part->memory + (at - part->first * op.element);
      }
      fold(context_.group, op, context_.inputs.data(), context_.outputs.data(), op.size, count,
           away.streaming);
      for (const std::byte*& input : context_.inputs) input += count;
      for (std::byte*& output : context_.outputs) output += count;
      at += count;
    }
    return {};
  }
  static uint64_t end_of(const Operation& op, const Away::Part& part) {
    return (part.first + part.count) * op.element;
  }

  size_t away_ = 0;  // of the parts that lie elsewhere, the first that is not folded
};

// all_reduce of private memory: the owner of a slice pulls the peers' inputs chunk by chunk, which stay in
// its cache, folds them into its own result, and the others pull that.
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
