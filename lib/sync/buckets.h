// The memory of a reducer: buckets and hooks' scratch in the communicator's arena, and where each parameter
// lies in it. The buckets are made when a reducer is created, and stay when it is bound to another
// communicator; the scratch is made for each. Threads: immutable after make; what lies in the memory belongs
// to whoever the step's state says.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "core/accelerator.h"
#include "core/arena.h"
#include "sync/layout.h"
#include "sync/manifest.h"
#include "sync/plan.h"
#include "sync/schedule.h"

namespace weft {

// What one poll copies, scales or folds at most, so that what else the engine has to do is not kept waiting.
inline constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

// Which devices have to reach memory: all of a process, by way of one.
struct DeviceReach {
  std::shared_ptr<Accelerator> accelerator;  // null: none has to
  int device = 0;
};

// Memory of an arena. Shared by what is laid out in it anew.
struct Slab {
  std::shared_ptr<Arena> arena;
  std::byte* memory = nullptr;
  uint64_t bytes = 0;
  std::atomic<bool> left{false};           // to the arena: something may still write into it
  std::shared_ptr<Accelerator> pinned_by;  // null: devices do not reach it

  Slab() = default;
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  // Devices reach it: until its end, which may wait for them. Nothing happens where they do already.
  Status pin(const DeviceReach& reach);
};

class Buckets {
 public:
  // What ready needs of a parameter, on one cache line.
  struct Place {
    std::byte* memory = nullptr;  // null without a bucket
    const Layout* layout = nullptr;
    uint32_t bucket = 0;         // or kNoBucket
    Dtype dtype = Dtype::kF32;   // of what is held in memory
    uint8_t element_bytes = 0;   // of that
    uint8_t gradient_bytes = 0;  // of an element of the gradient
    uint64_t count = 0;          // elements; none where the gradient is sparse
    bool sparse = false;
    bool on_device = false;  // its gradients are: this memory is pinned, and the device writes and reads it
  };
  // The type in which a bucket holds contributions until it travels, where that is another one: converted in
  // place, so that a bucket takes the memory of the wider of the two.
  enum class Hold : uint8_t {
    kTravelling,  // as it travels
    kWide,        // f32 instead of 16 bits: sums of local steps lose nothing
    kGradients,   // as the program's gradients: these are views, but for those on devices
  };

  // retain: with room for a copy of every bucket. kNoMemory.
  static Status make(const Manifest& manifest, const Plan& plan, Hold hold, std::shared_ptr<Arena> arena,
                     bool retain, const HostAllocator& allocator, const DeviceReach& reach,
                     std::shared_ptr<Buckets>* buckets);
  // For another plan of the same manifest, in the memory of `old`, where its gradients stay until relayout.
  // Null if the new buckets do not fit there.
  static std::shared_ptr<Buckets> make_over(const Buckets& old, const Manifest& manifest, const Plan& plan,
                                            Hold hold);
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;
  // Devices reach the memory again, where they lost it as the arena changed its pages (Arena::change_pages).
  Status pin(const DeviceReach& reach) const { return slab_->pin(reach); }
  // Something may still write into the memory (a stage that never completed): it is left to the arena.
  void abandon() { slab_->left = true; }  // any thread
  uint64_t longest_bytes() const;         // of the largest bucket, as it is held

  const Place& place(uint64_t param) const { return places_[param]; }
  std::byte* memory() const { return slab_->memory; }  // of all of them
  bool hold(const void* pointer) const {
    const auto at = reinterpret_cast<uintptr_t>(pointer), first = reinterpret_cast<uintptr_t>(slab_->memory);
    return at - first < slab_->bytes;
  }
  const std::vector<std::byte*>& buffers() const { return buffers_; }  // per bucket
  Dtype held(uint32_t bucket) const { return held_[bucket]; }
  // Where a bucket's contributions are kept while it travels, as they are held; null without `retain`.
  std::byte* retained(uint32_t bucket) const { return retained_.empty() ? nullptr : retained_[bucket]; }
  uint64_t bucket_bytes() const { return slab_->bytes; }
  // They are more than caches keep from one use to the next: copies into and out of them need not pass there.
  bool streaming() const { return slab_->bytes >= kStreamingBytes; }
  uint64_t retained_bytes() const { return retained_slab_ ? retained_slab_->bytes : 0; }
  uint64_t memory_bytes() const;  // of the tables on the heap

 private:
  Buckets() = default;

  struct Sizes {
    std::vector<uint64_t> buckets;
    std::vector<uint64_t> held;
  };
  // Of every bucket; fills held_.
  Sizes measure(const Plan& plan, Hold hold);
  void place(const Manifest& manifest, const Plan& plan);

  std::shared_ptr<Slab> slab_;
  std::vector<std::byte*> buffers_;
  std::vector<Dtype> held_;
  std::vector<uint64_t> held_bytes_;
  std::shared_ptr<Slab> retained_slab_;
  std::vector<std::byte*> retained_;
  std::vector<Layout> layouts_;
  std::vector<Place> places_;
};

// The gradient is zero.
inline void clear_place(const Buckets::Place& place) {
  if (place.count > 0) std::memset(place.memory, 0, place.count * place.element_bytes);
}

// Elements [first, first + count) of a buffer become what they are in another type, times scale, in place:
// element i is at i times the element's size, before and after. Whoever makes elements narrower does so from
// the first one on, wider: from the last one.
void convert_in_place(const DeviceOps& ops, std::byte* buffer, Dtype from, Dtype to, uint64_t first,
                      uint64_t count, double scale);

class HookScratch {
 public:
  // guarded: behind each bucket's lies a pattern that a hook must leave alone.
  static Status make(const Schedule& schedule, std::shared_ptr<Arena> arena, const DeviceReach& reach,
                     bool guarded, std::unique_ptr<HookScratch>* scratch);
  HookScratch(const HookScratch&) = delete;
  HookScratch& operator=(const HookScratch&) = delete;
  void abandon() { slab_.left = true; }  // as Buckets'

  const std::vector<std::byte*>& parts() const { return parts_; }  // per bucket
  // The hook has not written behind a bucket's scratch.
  bool intact(uint32_t bucket) const;
  uint64_t bytes() const { return slab_.bytes; }

 private:
  HookScratch() = default;

  Slab slab_;
  std::vector<std::byte*> parts_;
  std::vector<std::span<std::byte>> guards_;  // per bucket; none if there are no guards
};

}  // namespace weft
