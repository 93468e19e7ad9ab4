// Scratch memory of a hierarchical lane: one part for each piece in flight, kept between operations. Parts
// for operations on host memory are in the arena, whose memory the ranks of the host read in place, or
// private if the program has allocated all of the arena. Parts for operations on devices are pinned memory.
//
// Threads: reserve_pinned and memory_bytes: any thread. Other functions: need the progress lock, or that no
// other thread uses the lane.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "device/accelerator.h"
#include "device/arena.h"

namespace weft::coll {

class PieceScratch {
 public:
  static constexpr uint64_t kParts = 2;

  explicit PieceScratch(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}
  // Does not free the pinned memory, which a device may still access: see free_pinned.
  ~PieceScratch() { release(); }
  PieceScratch(const PieceScratch&) = delete;
  PieceScratch& operator=(const PieceScratch&) = delete;

  // Makes parts of at least `bytes` available in host memory, whole cache lines. What they contained is lost.
  Status reserve(uint64_t bytes);
  // Frees the parts in host memory.
  void release();
  // Makes parts of `bytes` available in pinned memory: the first call does, for all later operations.
  Status reserve_pinned(const DeviceCall& call, uint64_t bytes);
  // Frees the parts in pinned memory. No device accesses them any more.
  void free_pinned();

  // Return part `number` modulo kParts; null if there is none.
  std::byte* part(uint64_t number) const { return place(memory_, part_bytes_, number); }
  std::byte* pinned_part(uint64_t number) const { return place(pinned_, pinned_part_bytes_, number); }
  uint64_t memory_bytes() const {
    return kParts *
           (part_bytes_.load(std::memory_order_relaxed) + pinned_part_bytes_.load(std::memory_order_relaxed));
  }

 private:
  static std::byte* place(std::byte* memory, const std::atomic<uint64_t>& bytes, uint64_t number) {
    return memory == nullptr ? nullptr : memory + number % kParts * bytes.load(std::memory_order_relaxed);
  }

  const std::shared_ptr<Arena> arena_;
  std::byte* memory_ = nullptr;
  bool in_arena_ = false;
  std::atomic<uint64_t> part_bytes_{0};  // written under the progress lock
  std::mutex mutex_;
  std::byte* pinned_ = nullptr;  // guarded by mutex_ until the first device operation
  std::atomic<uint64_t> pinned_part_bytes_{0};
  Accelerator* accelerator_ = nullptr;
};

}  // namespace weft::coll
