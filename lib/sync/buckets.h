// The memory of a reducer: buckets and hooks' scratch in the communicator's arena, and where each parameter
// lies in it. Made when a reducer is created. Threads: immutable after make; what lies in the memory belongs
// to whoever the step's state says.
#pragma once

#include <cstdint>
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
    std::byte* memory = nullptr;
    const Layout* layout = nullptr;
    uint32_t bucket = 0;
    uint32_t element_bytes = 0;
    uint64_t count = 0;
  };

  // kNoMemory.
  static Status make(const Manifest& manifest, const Plan& plan, const Schedule& schedule,
                     std::shared_ptr<Arena> arena, std::unique_ptr<Buckets>* buckets);
  ~Buckets();
  Buckets(const Buckets&) = delete;
  Buckets& operator=(const Buckets&) = delete;
  // Something may still write into the memory (a stage that never completed): it is left to the arena.
  void abandon() { left_ = true; }

  const Place& place(uint64_t param) const { return places_[param]; }
  const std::vector<std::byte*>& buffers() const { return buffers_; }  // per bucket
  const std::vector<std::byte*>& scratch() const { return scratch_; }  // per bucket
  uint64_t bucket_bytes() const { return bucket_bytes_; }
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  uint64_t memory_bytes() const;  // of the tables on the heap

 private:
  Buckets() = default;

  std::shared_ptr<Arena> arena_;
  bool left_ = false;
  std::byte* slab_ = nullptr;
  std::byte* scratch_slab_ = nullptr;
  uint64_t bucket_bytes_ = 0;
  uint64_t scratch_bytes_ = 0;
  std::vector<std::byte*> buffers_;
  std::vector<std::byte*> scratch_;
  std::vector<Layout> layouts_;
  std::vector<Place> places_;
};

}  // namespace weft
