// The memory of one rank, mapped by every rank of its host. It is a sealed memfd, so that no process can
// shrink it under a reader and a crash leaves nothing behind. Made during group setup; constant afterwards.
// Threads: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "layout.h"

namespace weft::shm {

// Addresses of segments, modulo kPlaces: each segment is mapped kApart behind that of the previous rank.
// AMD's first-level caches find a line by a hash of bits 12 to 27 of its address, and keep only one of two
// lines with equal hashes. Ranks' buffers have equal offsets and are used together. Operations took up to
// seven times as long where the buffers' addresses agreed in these bits. Addresses that differ only in bits
// 21 to 27 never have the same hash.
inline constexpr uint64_t kPlaces = uint64_t{1} << 28;
inline constexpr uint64_t kApart = kHugePage;

// Creates the file of a segment: a memfd of this size that nobody can shrink, grow or, where the kernel knows
// that, execute.
Status create_file(uint64_t size, Fd* fd);

// The own arena's address range in this process. It stays when a communicator is shrunk, while the memory
// behind it is replaced by that of a new segment, which the excluded ranks do not know. Threads: one thread
// at a time calls back_anew, while no thread uses the memory.
class ArenaMemory {
 public:
  // Maps the arena of the segment `fd` at `place`.
  static Status map(const Fd& fd, const Layout& layout, uint64_t place, std::shared_ptr<ArenaMemory>* memory);
  ~ArenaMemory();
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  // Replaces the memory behind this mapping by the arena of the segment `fd`, which must have the same size;
  // the addresses stay the same. Copies the first `used` bytes. After an error the old memory is still
  // mapped, unless only the final population of the new pages failed: then the new memory is.
  Status back_anew(const Fd& fd, const Layout& layout, uint64_t used);

  std::byte* base() const { return base_; }
  uint64_t size() const { return size_; }

 private:
  ArenaMemory(std::byte* base, uint64_t size) : base_(base), size_(size) {}

  std::byte* const base_;
  const uint64_t size_;
};

// A mapping of a segment. Ranks that are threads of one process share the owner's mapping, which ends with
// its last user.
class Mapping {
 public:
  // Creates a segment and maps it. If *arena is set, it becomes the segment's arena: its addresses stay, its
  // first `used` bytes are copied, and the rest of the segment is mapped before it. Otherwise the segment is
  // mapped at `place`, and *arena is set. users: the number of release() calls that end the mapping.
  static Status create(const Layout& layout, uint64_t nonce, int users, uint64_t place,
                       std::shared_ptr<ArenaMemory>* arena, uint64_t used, Mapping** mapping, Fd* fd);
  // Maps a peer's segment, at `place` if possible, after checking its size, seals and header.
  static Status attach(Fd fd, const Layout& layout, uint64_t nonce, uint64_t place, Mapping** mapping);
  void release();

  // The addresses to which an offset of the segment is added: base() for offsets below Layout::arena,
  // arena_base() for the others.
  std::byte* base() const { return base_; }
  std::byte* arena_base() const { return arena_base_; }
  uint64_t nonce() const { return nonce_; }
  // Returns the address that a peer in another process reads to test whether it may read this process's
  // memory.
  const uint64_t* nonce_address() const { return &nonce_; }

 private:
  Mapping(std::byte* base, uint64_t size, std::byte* arena_base, std::shared_ptr<ArenaMemory> arena,
          uint64_t nonce, int users)
      : base_(base),
        size_(size),
        arena_base_(arena_base),
        arena_(std::move(arena)),
        nonce_(nonce),
        users_(users) {}

  std::byte* const base_;
  const uint64_t size_;
  std::byte* const arena_base_;
  const std::shared_ptr<ArenaMemory> arena_;  // set for the own segment
  const uint64_t nonce_;
  std::atomic<int> users_;
};

// Returns the largest arena, at most `limit`, with which this process can map `ranks` segments and create
// one.
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
