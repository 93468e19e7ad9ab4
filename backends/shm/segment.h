// The memory of one rank, mapped by every rank of its host: a sealed memfd, so that nobody can shrink it
// under a reader and nothing is left behind by a crash. Made while a comm is formed; after that a value that
// does not change. Threads: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "layout.h"

namespace weft::shm {

// At which addresses segments are mapped, modulo kPlaces: each kApart behind that of the rank before it.
// AMD's first-level caches find a line by a hash of bits 12 to 27 of its address, and of two whose hash is
// equal they keep one: ranks' buffers lie at equal offsets, are used together, and took up to seven times as
// long where their addresses agreed in these bits. Different in bits 21 to 27 alone they never have the same
// hash.
inline constexpr uint64_t kPlaces = uint64_t{1} << 28;
inline constexpr uint64_t kApart = kHugePage;

// Where the own arena lies in this process: addresses that stay when a communicator is shrunk, while the
// memory behind them is changed for that of a new segment, of which nobody knows who was left out. Threads:
// one thread at a time for back_anew, and nobody uses the memory meanwhile.
class ArenaMemory {
 public:
  // The arena of the segment `fd`, which shall lie at `place`.
  static Status map(const Fd& fd, const Layout& layout, uint64_t place, std::shared_ptr<ArenaMemory>* memory);
  ~ArenaMemory();
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  // Become the arena of the segment `fd`, of the same size; the first `used` bytes keep what they hold. After
  // an error everything is as before.
  Status back_anew(const Fd& fd, const Layout& layout, uint64_t used);

  std::byte* base() const { return base_; }
  uint64_t size() const { return size_; }

 private:
  ArenaMemory(std::byte* base, uint64_t size) : base_(base), size_(size) {}

  std::byte* const base_;
  const uint64_t size_;
};

// A mapping of a segment. Ranks that are threads of one process share their owner's: it ends with the last.
class Mapping {
 public:
  // Make a segment. Its arena lies at *arena, whose first `used` bytes are kept, or is mapped if there is
  // none yet: then the segment shall lie at `place`. users: how many release() calls end the mapping.
  static Status create(const Layout& layout, uint64_t nonce, int users, uint64_t place,
                       std::shared_ptr<ArenaMemory>* arena, uint64_t used, Mapping** mapping, Fd* fd);
  // Map what a peer sent, at `place` if that can be had, after checking its size, its seals and its header.
  static Status attach(Fd fd, const Layout& layout, uint64_t nonce, uint64_t place, Mapping** mapping);
  void release();

  // What offsets of the segment are added to: those below Layout::arena, and the others.
  std::byte* base() const { return base_; }
  std::byte* arena_base() const { return arena_base_; }
  uint64_t nonce() const { return nonce_; }
  // Where a peer in another process probes whether it may read this process's memory.
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
  const std::shared_ptr<ArenaMemory> arena_;  // the own one's
  const uint64_t nonce_;
  std::atomic<int> users_;
};

// The largest arena, at most `limit`, with which this process could map `ranks` segments and make one.
uint64_t feasible_arena(int ranks, uint64_t limit);

// Give pages to [from, from + size) of a mapping, writable, without changing what they hold. kNoMemory
// instead of a signal later.
Status populate(std::byte* from, uint64_t size);

// Bytes that this machine (or this process's cgroup) can still give.
uint64_t available_memory();

// What of a peer's segment has been given page table entries in this process already.
class PopulatedRanges {
 public:
  // Populate what is missing of [offset, offset + size), in granules.
  Status ensure(std::byte* base, uint64_t total, uint64_t offset, uint64_t size);

 private:
  static constexpr uint64_t kGranule = 64 << 10;
  std::vector<bool> done_;
};

}  // namespace weft::shm
