// The ranks of a communicator as the shm backend sees them: every rank's segment, mapped here, the ranks that
// are threads of this process, and whether peers' private memory may be read. Made once, collectively.
// Constant afterwards except for counters and populated ranges. Lanes and pairs borrow it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "base/pause.h"
#include "base/round_up.h"
#include "device/arena.h"
#include "segment.h"
#include "thresholds.h"
#include "transport/backend.h"

namespace weft::shm {

// An arena over the part of the own segment that peers access. Threads: any thread.
class SegmentArena final : public Arena {
 public:
  explicit SegmentArena(std::shared_ptr<ArenaMemory> memory)
      : memory_(std::move(memory)), base_(memory_->base()), size_(memory_->size()), extents_(size_) {}
  Status allocate(uint64_t size, std::byte** memory) override;
  Status free(std::byte* memory) override;
  uint64_t populated_bytes() const override { return populated_.load(std::memory_order_relaxed); }
  void taint() override { extents_.keep_freed(); }
  // The memory has new backing: no other process writes into it.
  void untaint() { extents_.reclaim(); }
  const std::shared_ptr<ArenaMemory>& memory() const { return memory_; }

 private:
  const std::shared_ptr<ArenaMemory> memory_;
  std::byte* const base_;
  const uint64_t size_;
  ExtentAllocator extents_;
  std::mutex mutex_;                    // for allocate
  std::atomic<uint64_t> populated_{0};  // [0, populated_) was handed out before and may contain anything
};

struct PeerSegment {
  std::byte* base = nullptr;        // as Segments'
  std::byte* arena_base = nullptr;  // as Segments'
  uint64_t remote_base = 0;         // its address in the owner's process
  int64_t pid = 0;
  bool same_process = false;
};

class Group {
 public:
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  // Returns the number of a rank in errors.
  int name(int rank) const { return names_.empty() ? rank : names_[static_cast<size_t>(rank)]; }
  const Layout& layout() const { return layout_; }
  const DeviceOps& host() const { return *host_; }
  const std::shared_ptr<SegmentArena>& arena() { return arena_; }
  // True if there are more ranks than cores, so that a waiting rank must let others run.
  bool crowded() const { return crowded_; }
  // Waits between two polls of a peer's counter. Each poll takes the cache line from the peer that is about
  // to write it.
  void pause() const {
    for (int i = 0; i < pauses_; i++) cpu_pause();
  }
  // Equal on all ranks. Set only while no lane has an operation in flight.
  const Thresholds& thresholds() const { return thresholds_; }
  void set_thresholds(const Thresholds& thresholds) { thresholds_ = thresholds; }
  bool same_process(int rank) const { return peer(rank).same_process; }
  uint64_t first_packet() const { return first_packet_; }  // number of the first packet of every pair

  // Returns the object at an offset of a rank's segment, before its arena.
  template <class T>
  T& at(int rank, uint64_t offset) const {
    return *std::launder(reinterpret_cast<T*>(peer(rank).base + offset));
  }
  std::byte* memory(int rank, uint64_t offset) const { return base_of(peer(rank), offset) + offset; }
  // True if [memory, memory + bytes) is in the own arena, aligned to `alignment`; *offset is its offset in
  // the segment.
  bool in_arena(const std::byte* memory, uint64_t bytes, uint64_t alignment, uint64_t* offset) const;
  // True if [offset, offset + bytes), which a peer sent, lies within the arena of a segment, and offset is a
  // multiple of alignment.
  bool valid_claim(uint64_t offset, uint64_t bytes, uint64_t alignment) const;
  // Populates the pages of this range in `rank`'s segment, so that accesses neither fault nor raise SIGBUS.
  // Needs the progress lock.
  Status ensure(int rank, uint64_t offset, uint64_t bytes);
  // Reads another process's private memory.
  Status read_private(int rank, uint64_t address, std::byte* to, uint64_t bytes) const;

  // A fail point where tests stop this rank. Called before each write into peers' memory.
  void reach_writing(uint64_t slot, uint64_t round) const {
    if (failpoints_ != nullptr) (void)failpoints_->reach(FailPlace::kWriting, slot, round, *clock_);
  }

  // Payload bytes moved, for statistics.
  void count_shared(uint64_t bytes) { shared_.fetch_add(bytes, std::memory_order_relaxed); }
  void count_direct(uint64_t bytes) { direct_.fetch_add(bytes, std::memory_order_relaxed); }
  void forget_moved() {
    for (std::atomic<uint64_t>* const bytes : {&shared_, &direct_})
      bytes->store(0, std::memory_order_relaxed);
  }
  uint64_t moved_bytes() const { return shared_bytes() + direct_bytes(); }
  uint64_t shared_bytes() const { return shared_.load(std::memory_order_relaxed); }
  uint64_t direct_bytes() const { return direct_.load(std::memory_order_relaxed); }

 private:
  Group() = default;
  const PeerSegment& peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  PeerSegment& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  std::byte* base_of(const PeerSegment& of, uint64_t offset) const {
    return offset < layout_.arena ? of.base : of.arena_base;
  }
  friend class GroupSetup;

  int rank_ = 0;
  std::vector<int> names_;  // BackendArgs::names
  Layout layout_;
  const DeviceOps* host_ = nullptr;
  Thresholds thresholds_;
  bool crowded_ = false;
  int pauses_ = 1;  // iterations of pause()
  FailPointsPtr failpoints_;
  uint64_t first_packet_ = 0;
  uint64_t nonce_ = 0;  // peers read it to find out whether they may read this process's memory
  Clock* clock_ = nullptr;
  std::shared_ptr<Segments> segments_;
  std::vector<PeerSegment> peers_;
  std::vector<PopulatedRanges> populated_;
  std::shared_ptr<SegmentArena> arena_;  // shared by communicators that were shrunk from each other
  std::atomic<uint64_t> shared_{0};
  std::atomic<uint64_t> direct_{0};
};

// Writes into every cache line that this rank has read of a peer's segment. No rank reads it again before its
// owner rewrites it. The owner's writes then cost a third of what writes to shared (only read) lines cost.
// Called before the owner is notified that the lines are free.
inline void write_read_lines(std::byte* read, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kCacheLine) read[at] = std::byte{0};
}

}  // namespace weft::shm
