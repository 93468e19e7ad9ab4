// The memory of the ranks of one host: a segment for each rank, all in one file that the first rank creates
// and every rank maps. It is a sealed memfd, so that no process can shrink it under a reader and a crash
// leaves nothing behind. Made during group setup; constant afterwards. Threads: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "layout.h"

namespace weft::shm {

// Addresses are chosen modulo kPlaces. AMD's first-level caches find a line by a hash of bits 12 to 27 of its
// address, and keep only one of two lines with equal hashes. Ranks' buffers have equal offsets and are used
// together. Operations took up to seven times as long where the buffers' addresses agreed in these bits.
// Addresses that differ only in bits 21 to 27 never have the same hash.
inline constexpr uint64_t kPlaces = uint64_t{1} << 28;

// Creates a memfd of this size that nobody can shrink, grow or, where the kernel knows that, execute.
Status create_file(uint64_t size, Fd* fd);
// Creates the file of all segments, and writes its header.
Status create_segments(const Layout& layout, uint64_t nonce, Fd* fd);

// The own arena's address range in this process. It stays when a communicator is shrunk, while the memory
// behind it is replaced by that of a new segment, which the excluded ranks do not know. Threads: one thread
// at a time calls back_anew, while no thread uses the memory.
class ArenaMemory {
 public:
  // Maps the arena of segment `rank` of the file at `place`.
  static Status map(const Fd& fd, const Layout& layout, int rank, uint64_t place,
                    std::shared_ptr<ArenaMemory>* memory);
  ~ArenaMemory();
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  // Replaces the memory behind this mapping by the arena of segment `rank` of the file, which must have the
  // same size; the addresses stay the same. Copies the first `used` bytes. After an error the old memory is
  // still mapped, unless only the final population of the new pages failed: then the new memory is.
  Status back_anew(const Fd& fd, const Layout& layout, int rank, uint64_t used);

  std::byte* base() const { return base_; }
  uint64_t size() const { return size_; }

 private:
  ArenaMemory() = default;

  std::byte* base_ = nullptr;
  uint64_t size_ = 0;
};

// The segments of all ranks, mapped into this process. Ranks that are threads of one process share one
// mapping.
class Segments {
 public:
  // Sets *segments to this process's mapping of the file with this nonce. If no other thread has one, it maps
  // the file after checking its size, seals and header, with segment `rank` at `place` modulo kPlaces if
  // possible.
  static Status open(const Fd& fd, const Layout& layout, uint64_t nonce, int rank, uint64_t place,
                     std::shared_ptr<Segments>* segments);
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  // Populates what every operation touches of a rank's segment. kNoMemory.
  Status populate_control(int rank);
  // The addresses to which an offset of a rank's segment is added: base() for offsets below Layout::arena,
  // arena_base() for the others. A rank of this process accesses its own arena through its ArenaMemory, and
  // so do the other ranks of this process, once it has said where that is.
  std::byte* base(int rank) const { return base_ + layout_.segment(rank); }
  std::byte* arena_base(int rank) const {
    std::byte* const own = arenas_[static_cast<size_t>(rank)].load(std::memory_order_acquire);
    return own != nullptr ? own - layout_.arena : base(rank);
  }
  void set_arena(int rank, const ArenaMemory& arena) {
    arenas_[static_cast<size_t>(rank)].store(arena.base(), std::memory_order_release);
  }

 private:
  Segments(const Layout& layout, uint64_t nonce) : layout_(layout), nonce_(nonce), arenas_(layout.ranks) {}

  std::byte* base_ = nullptr;
  const Layout layout_;
  const uint64_t nonce_;
  std::vector<std::atomic<std::byte*>> arenas_;  // of the ranks of this process; null: not known
};

// Returns the largest arena, at most `limit`, with which this process can create and map the segments of so
// many ranks.
uint64_t feasible_arena(int ranks, uint64_t limit);

// Makes the pages of [from, from + size) writable without changing their contents. Returns kNoMemory instead
// of a signal later.
Status populate(std::byte* from, uint64_t size);

// Returns the bytes that this machine (or this process's cgroup) can still provide.
uint64_t available_memory();

// The ranges of a peer's segment that already have page table entries in this process.
class PopulatedRanges {
 public:
  // Populates the missing pages of [offset, offset + size), in granules.
  Status ensure(std::byte* base, uint64_t total, uint64_t offset, uint64_t size);

 private:
  static constexpr uint64_t kGranule = 64 << 10;
  std::vector<bool> done_;
};

}  // namespace weft::shm
