#include "sync/buckets.h"

#include <algorithm>

#include "base/round_up.h"
#include "base/text.h"

namespace weft {
namespace {

constexpr uint64_t kScratchAlignment = 64;  // as weft.h promises

// Take one slab for consecutive, aligned parts. No memory is taken for nothing.
Status take(Arena& arena, const std::vector<uint64_t>& sizes, uint64_t alignment, const char* what,
            std::byte** slab, uint64_t* total, std::vector<std::byte*>* parts) {
  *total = 0;
  for (const uint64_t size : sizes) *total += round_up(size, alignment);
  if (*total > 0) {
    WEFT_TRY(arena.allocate(*total, slab).with_prefix(cat(what, ": ")));
  }
  std::byte* at = *slab;
  for (const uint64_t size : sizes) {
    parts->push_back(at);
    if (at != nullptr) at += round_up(size, alignment);
  }
  return {};
}

}  // namespace

Status Buckets::make(const Manifest& manifest, const Plan& plan, std::shared_ptr<Arena> arena, bool retain,
                     const HostAllocator& allocator, std::shared_ptr<Buckets>* out) {
  std::shared_ptr<Buckets> made(new Buckets);
  made->arena_ = std::move(arena);
  std::vector<uint64_t> sizes;
  sizes.reserve(plan.buckets.size());
  // A bucket of empty parameters has an address of its own all the same.
  for (const PlannedBucket& b : plan.buckets)
    sizes.push_back(b.sparse ? 0 : std::max<uint64_t>(b.bytes(), 1));
  WEFT_TRY(take(*made->arena_, sizes, Arena::kAlignment, "memory of the buckets", &made->slab_,
                &made->bucket_bytes_, &made->buffers_));
  if (retain) {
    made->retained_arena_ = std::make_unique<HeapArena>(allocator);
    std::byte* slab = nullptr;
    uint64_t bytes = 0;
    WEFT_TRY(take(*made->retained_arena_, sizes, kScratchAlignment, "memory of retained contributions", &slab,
                  &bytes, &made->retained_));
  }
  made->layouts_.reserve(manifest.params.size());
  made->places_.reserve(manifest.params.size());
  for (uint32_t i = 0; i < manifest.params.size(); i++) {
    const Layout& layout = made->layouts_.emplace_back(manifest.params[i]);
    const uint32_t bucket = plan.bucket_of[i];
    std::byte* const memory =
        bucket == kNoBucket ? nullptr : made->buffers_[bucket] + plan.offset_of[i] * layout.element_bytes();
    const bool sparse = manifest.params[i].sparse();
    made->places_.push_back(
        {memory, &layout, bucket, layout.element_bytes(), sparse ? 0 : layout.count(), sparse});
  }
  *out = std::move(made);
  return {};
}

Buckets::~Buckets() {
  // The arena only refuses what it did not give.
  if (!left_ && slab_ != nullptr) static_cast<void>(arena_->free(slab_));
}

Status HookScratch::make(const Schedule& schedule, std::shared_ptr<Arena> arena,
                         std::unique_ptr<HookScratch>* out) {
  std::unique_ptr<HookScratch> made(new HookScratch);
  made->arena_ = std::move(arena);
  std::vector<uint64_t> sizes;
  sizes.reserve(schedule.buckets.size());
  for (const HookedBucket& b : schedule.buckets) sizes.push_back(b.scratch_bytes);
  WEFT_TRY(take(*made->arena_, sizes, kScratchAlignment, "scratch of the hook", &made->slab_, &made->bytes_,
                &made->parts_));
  *out = std::move(made);
  return {};
}

HookScratch::~HookScratch() {
  if (!left_ && slab_ != nullptr) static_cast<void>(arena_->free(slab_));
}

uint64_t Buckets::memory_bytes() const {
  uint64_t bytes = (buffers_.capacity() + retained_.capacity()) * sizeof(std::byte*) +
                   layouts_.capacity() * sizeof(Layout) + places_.capacity() * sizeof(Place);
  for (const Layout& layout : layouts_) bytes += layout.memory_bytes();
  return bytes;
}

}  // namespace weft
