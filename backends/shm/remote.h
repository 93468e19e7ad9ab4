// The base of paths that read or write peers' buffers in place: each rank's claims, checked, and the pages
// behind them. Called by direct.cpp under the progress lock.
#pragma once

#include <cstring>
#include <vector>

#include "base/text.h"
#include "path.h"

namespace weft::shm {

enum class Reach { kMapped, kPulled };
inline constexpr uint64_t kMappedPart = 256 << 10;

// The buffers of all ranks that play one role, as sources or as targets, and how this rank accesses them.
class Remote {
 public:
  // Add the next rank's buffer: at `offset` of its segment, which is checked, or at `address` of its process.
  // bytes: the part that this path accesses.
  Status add_mapped(Group& group, int rank, uint64_t offset, uint64_t bytes, uint64_t alignment) {
    if (!group.valid_claim(offset, bytes, alignment)) {
      return Status::error(
                 Code::kPeerFailed,
                 cat("rank ", group.name(rank),
                     " published a buffer outside its segment or misaligned: ", bytes, " bytes at offset ",
                     offset, ", expected offsets from ", group.layout().arena, " to ", group.layout().total,
                     ", at a multiple of ", alignment, ": the shared memory is corrupt"),
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

  // Returns the bytes at `skip` of a rank's buffer, for reading now. Uses scratch if they must be pulled.
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
  // Returns the bytes at `skip` of a mapped buffer, for writing.
  Status target(Group& group, int rank, uint64_t skip, uint64_t bytes, std::byte** at) const {
    *at = buffers_[static_cast<size_t>(rank)].here + skip;
    return prepare(group, rank, skip, bytes);
  }

 private:
  struct Buffer {
    std::byte* here;  // null: the buffer is pulled
    uint64_t where;   // offset in the segment, or address in the process
    bool mapped;
  };
  // Counts the payload in the statistics and populates its pages in this process.
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
    return exchange_segments(op, op.input_bytes(), &Claims::src_offset, &Claims::src_address, &sources_);
  }
  Status reach_targets(const Operation& op) {
    targets_.clear();
    return exchange_segments(op, op.bytes, &Claims::dst_offset, &Claims::dst_address, &targets_);
  }
  // Bytes of a round for which all peers' parts are viewed at once. Pulled parts share the staging.
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
  Status exchange_segments(const Operation& op, uint64_t bytes, uint64_t Claims::* offset,
                           uint64_t Claims::* address, Remote* remote) {
    for (int r = 0; r < op.size; r++) {
      const Claims& claims = context_.claims[static_cast<size_t>(r)];
      if (reach_ == Reach::kPulled) {
        remote->add_pulled(context_.group, r, claims.*address);
      } else {
        // Only all_reduces access the own buffer through its claim, because they fold the inputs of all ranks
        // alike. Other collectives use the addresses of the call.
        const bool used = op.takes_from(r) && (r != op.rank || op.args.coll == Coll::kAllReduce);
        const uint64_t where = used ? claims.*offset : context_.group.layout().arena;
        WEFT_TRY(remote->add_mapped(context_.group, r, where, used ? bytes : 0, op.element));
      }
    }
    return {};
  }
};

}  // namespace weft::shm
