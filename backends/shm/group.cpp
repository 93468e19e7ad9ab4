#include "group.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.h"

namespace weft::shm {

Status SegmentArena::allocate(uint64_t size, std::byte** memory) {
  const std::lock_guard lock(mutex_);
  uint64_t offset = 0;
  if (size > size_ || !extents_.allocate(size, &offset)) {
    return Status::error(
        Code::kNoMemory,
        cat("cannot allocate ", bytes_text(size), " in the arena: no free range of its ", bytes_text(size_),
            " is large enough; free arena memory or raise weft_comm_options.arena_limit_bytes"));
  }
  const uint64_t used = populated_.load(std::memory_order_relaxed);
  const uint64_t fresh = offset + size > used ? offset + size - std::max(offset, used) : 0;
  Status status;
  if (fresh > 0 && fresh > available_memory()) {
    status = Status::error(Code::kNoMemory, cat("cannot allocate ", bytes_text(size),
                                                " in the arena: the host or the container has only ",
                                                bytes_text(available_memory()), " of memory left"));
  }
  if (status.ok() && fresh > 0) status = populate(base_ + offset + size - fresh, fresh);
  if (!status.ok()) {
    extents_.free(offset);
    return status;
  }
  if (offset < used) std::memset(base_ + offset, 0, std::min(size, used - offset));
  const uint64_t end = (offset + size + kAlignment - 1) / kAlignment * kAlignment;
  populated_.store(std::max(used, end), std::memory_order_relaxed);
  *memory = base_ + offset;
  return {};
}

Status SegmentArena::free(std::byte* memory) {
  const bool inside = memory >= base_ && memory < base_ + size_;
  if (!inside || extents_.free(static_cast<uint64_t>(memory - base_)) == 0) {
    return Status::error(
        Code::kArg,
        "the pointer is not the start of a buffer that was allocated from this communicator's arena");
  }
  return {};
}

bool Group::in_arena(const std::byte* memory, uint64_t bytes, uint64_t alignment, uint64_t* offset) const {
  const auto start = reinterpret_cast<uintptr_t>(peer(rank_).arena_base);
  const auto address = reinterpret_cast<uintptr_t>(memory);
  if (address < start || address - start >= layout_.total) return false;
  *offset = address - start;
  return valid_claim(*offset, bytes, alignment);
}

bool Group::valid_claim(uint64_t offset, uint64_t bytes, uint64_t alignment) const {
  return offset >= layout_.arena && offset <= layout_.total && bytes <= layout_.total - offset &&
         offset % alignment == 0;
}

Status Group::ensure(int rank, uint64_t offset, uint64_t bytes) {
  // The owner's thread has populated its arena.
  if (peer(rank).same_process && rank != rank_ && offset >= layout_.arena) return {};
  return populated_[static_cast<size_t>(rank)].ensure(base_of(peer(rank), offset), layout_.total, offset,
                                                      bytes);
}

Status Group::read_private(int rank, uint64_t address, std::byte* to, uint64_t bytes) const {
  while (bytes > 0) {
    const iovec local{to, bytes};
    const iovec remote{reinterpret_cast<void*>(address), bytes};
    const ssize_t got = ::process_vm_readv(static_cast<pid_t>(peer(rank).pid), &local, 1, &remote, 1, 0);
    if (got <= 0) {
      const int error = got < 0 ? errno : 0;
      return Status::error(Code::kPeerFailed,
                           cat("cannot read ", bytes, " bytes of the memory of rank ", name(rank),
                               " (process ", peer(rank).pid, "): ",
                               error == 0 ? "process_vm_readv returned 0 bytes" : std::strerror(error)),
                           error == ESRCH ? Evidence::kProcess : Evidence::kLocal)
          .with_ranks({name(rank)});
    }
    to += got;
    address += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
  return {};
}

}  // namespace weft::shm
