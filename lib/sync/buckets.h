// The memory of a reducer: buckets and hooks' scratch in the communicator's arena, and where each parameter
// lies in it. The buckets are made when a reducer is created, and stay when it is bound to another
// communicator; the scratch is made for each. Threads: immutable after make; what lies in the memory belongs
// to whoever the step's state says.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "core/arena.h"
#include "sync/layout.h"
#include "sync/manifest.h"
#include "sync/plan.h"
#include "sync/schedule.h"

namespace weft {

class Buckets {
 public:
  // What ready needs of a parameter, on one cache line.
  struct Place {
    std::byte* memory = nullptr;  // null without a bucket
    const Layout* layout = nullptr;
    uint32_t bucket = 0;  // or kNoBucket
    uint32_t element_bytes = 0;
    uint64_t count = 0;  // elements; none where the gradient is sparse
    bool sparse = false;
  };

  // retain: with room for a copy of every bucket. kNoMemory.
  static Status make(const Manifest& manifest, const Plan& plan, std::shared_ptr<Arena> arena, bool retain,
                     const HostAllocator& allocator, std::shared_ptr<Buckets>* buckets);
  ~Buckets();
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;
  // Something may still write into the memory (a stage that never completed): it is left to the arena.
  void abandon() { left_ = true; }

  const Place& place(uint64_t param) const { return places_[param]; }
  const std::vector<std::byte*>& buffers() const { return buffers_; }  // per bucket
  // Where a bucket's contributions are kept while it travels; null without `retain`.
  std::byte* retained(uint32_t bucket) const { return retained_.empty() ? nullptr : retained_[bucket]; }
  uint64_t bucket_bytes() const { return bucket_bytes_; }
  uint64_t retained_bytes() const { return retained_arena_ ? retained_arena_->populated_bytes() : 0; }
  uint64_t memory_bytes() const;  // of the tables on the heap

 private:
  Buckets() = default;

  std::shared_ptr<Arena> arena_;
  bool left_ = false;
  std::byte* slab_ = nullptr;
  uint64_t bucket_bytes_ = 0;
  std::vector<std::byte*> buffers_;
  std::unique_ptr<HeapArena> retained_arena_;
  std::vector<std::byte*> retained_;
  std::vector<Layout> layouts_;
  std::vector<Place> places_;
};

// The gradient is zero.
inline void clear_place(const Buckets::Place& place) {
  if (place.count > 0) std::memset(place.memory, 0, place.count * place.element_bytes);
}

class HookScratch {
 public:
  static Status make(const Schedule& schedule, std::shared_ptr<Arena> arena,
                     std::unique_ptr<HookScratch>* scratch);
  ~HookScratch();
  HookScratch(const HookScratch&) = delete;
  HookScratch& operator=(const HookScratch&) = delete;
  void abandon() { left_ = true; }  // as Buckets'

  const std::vector<std::byte*>& parts() const { return parts_; }  // per bucket
  uint64_t bytes() const { return bytes_; }

 private:
  HookScratch() = default;

  std::shared_ptr<Arena> arena_;
  bool left_ = false;
  std::byte* slab_ = nullptr;
  uint64_t bytes_ = 0;
  std::vector<std::byte*> parts_;
};

}  // namespace weft
