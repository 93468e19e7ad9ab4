// The memory of a reducer in the communicator's arena: buckets, the scratch of hooks, and the place of each
// parameter. The buckets are made when a reducer is created, and kept when it is bound to another
// communicator. The scratch is made for each communicator. Threads: immutable after make; the step's state
// says who owns the contents.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "device/accelerator.h"
#include "device/arena.h"
#include "reducer/bucket/layout.h"
#include "reducer/manifest/manifest.h"
#include "reducer/plan/plan.h"
#include "reducer/step/schedule.h"

namespace weft {

// The most bytes that one poll copies, scales or folds, so that the engine's other work is not delayed.
inline constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

// The devices that must be able to access memory: all devices of the process, through one accelerator.
struct DeviceReach {
  std::shared_ptr<Accelerator> accelerator;  // null: no device needs access
  int device = 0;
};

// A block of an arena. Bucket tables that share the block hold a reference to it.
struct Slab {
  std::shared_ptr<Arena> arena;
  std::byte* memory = nullptr;
  uint64_t bytes = 0;
  std::atomic<bool> left{false};           // not freed, because something may still write into it
  std::shared_ptr<Accelerator> pinned_by;  // null: no device has access

  Slab() = default;
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  // Pins the block for devices, until its destructor, which may wait for them. Does nothing if it is pinned.
  Status pin(const DeviceReach& reach);
};

class Buckets {
 public:
  // The fields that ready needs of a parameter, on one cache line.
  struct Place {
    std::byte* memory = nullptr;  // null without a bucket
    const Layout* layout = nullptr;
    uint32_t bucket = 0;         // or kNoBucket
    Dtype dtype = Dtype::kF32;   // storage dtype of the place
    uint8_t element_bytes = 0;   // of the storage dtype
    uint8_t gradient_bytes = 0;  // element size of the gradient
    uint64_t count = 0;          // elements; 0 for a sparse gradient
    bool sparse = false;
    bool on_device = false;  // gradients are on a device, which reads and writes this pinned memory
  };
  // The storage dtype: how a bucket holds contributions until it is communicated. If it differs from the
  // communication dtype, the bucket is converted in place and has room for the wider of the two.
  enum class Hold : uint8_t {
    kCommunicated,  // the communication dtype
    kWide,          // f32 instead of 16 bits, so that sums of local steps lose no precision
    kGradients,     // the gradients' dtype: gradients are views, except for those on devices
    kInPlace,       // as kGradients, in the program's memory (WEFT_GRADIENT_IN_PLACE)
  };

  // retain: reserves room for a copy of every bucket. kNoMemory.
  static Status make(const Manifest& manifest, const Plan& plan, Hold hold, std::shared_ptr<Arena> arena,
                     bool retain, const HostAllocator& allocator, const DeviceReach& reach,
                     std::shared_ptr<Buckets>* buckets);
  // Makes the tables of another plan of the same manifest in the memory of `old`. The gradients stay at their
  // old places until relayout. Null if the new buckets do not fit there.
  static std::shared_ptr<Buckets> make_over(const Buckets& old, const Manifest& manifest, const Plan& plan,
                                            Hold hold);
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;
  // Pins the memory again after the arena changed its pages (Arena::change_pages), which undoes the pinning.
  Status pin(const DeviceReach& reach) const { return slab_->pin(reach); }
  // Leaves the memory allocated, because something may still write into it (a stage that never completed).
  void abandon() { slab_->left = true; }  // any thread
  uint64_t longest_bytes() const;         // storage size of the largest bucket

  const Place& place(uint64_t param) const { return places_[param]; }
  std::byte* memory() const { return slab_->memory; }  // of all buckets
  bool hold(const void* pointer) const {
    const auto at = reinterpret_cast<uintptr_t>(pointer), first = reinterpret_cast<uintptr_t>(slab_->memory);
    return at - first < slab_->bytes;
  }
  const std::vector<std::byte*>& buffers() const { return buffers_; }  // per bucket
  Dtype held(uint32_t bucket) const { return held_[bucket]; }
  // Returns where a bucket's contributions are retained during communication, in the storage dtype. Null
  // without `retain`.
  std::byte* retained(uint32_t bucket) const { return retained_.empty() ? nullptr : retained_[bucket]; }
  uint64_t bucket_bytes() const { return slab_->bytes; }
  // True if the buckets exceed what caches keep between uses. Copies into and out of them then bypass the
  // caches.
  bool streaming() const { return slab_->bytes >= kStreamingBytes; }
  uint64_t retained_bytes() const { return retained_slab_ ? retained_slab_->bytes : 0; }
  uint64_t memory_bytes() const;  // of the tables on the heap

 private:
  Buckets() = default;

  struct Sizes {
    std::vector<uint64_t> buckets;
    std::vector<uint64_t> held;
  };
  // Returns the sizes of all buckets and fills held_.
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

// Sets the gradient in a place to zero.
inline void clear_place(const Buckets::Place& place) {
  if (place.count > 0) std::memset(place.memory, 0, place.count * place.element_bytes);
}

// Converts elements [first, first + count) of a buffer to another dtype, times scale, in place. Element i is
// at i times the element size before and after. A caller that narrows starts with the first elements, and one
// that widens with the last.
void convert_in_place(const DeviceOps& ops, std::byte* buffer, Dtype from, Dtype to, uint64_t first,
                      uint64_t count, double scale);

class HookScratch {
 public:
  // guarded: puts a pattern after each bucket's scratch, which a hook must not overwrite.
  static Status make(const Schedule& schedule, std::shared_ptr<Arena> arena, const DeviceReach& reach,
                     bool guarded, std::unique_ptr<HookScratch>* scratch);
  HookScratch(const HookScratch&) = delete;
  HookScratch& operator=(const HookScratch&) = delete;
  void abandon() { slab_.left = true; }  // as Buckets::abandon

  const std::vector<std::byte*>& parts() const { return parts_; }  // per bucket
  // True if the hook has not written past a bucket's scratch.
  bool intact(uint32_t bucket) const;
  uint64_t bytes() const { return slab_.bytes; }

 private:
  HookScratch() = default;

  Slab slab_;
  std::vector<std::byte*> parts_;
  std::vector<std::span<std::byte>> guards_;  // per bucket; empty without guards
};

}  // namespace weft
