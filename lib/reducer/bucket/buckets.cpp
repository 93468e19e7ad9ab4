#include "reducer/bucket/buckets.h"

#include <algorithm>

#include "base/round_up.h"
#include "base/text.h"
#include "reducer/bucket/in_place.h"

namespace weft {
namespace {

constexpr uint64_t kScratchAlignment = 64;  // promised in weft.h
constexpr uint64_t kGuardBytes = 32;        // at least, after the scratch of a program's own hook
constexpr std::byte kGuard{0xA5};

Dtype held_as(const PlannedBucket& bucket, Buckets::Hold hold) {
  switch (hold) {
    case Buckets::Hold::kGradients:
      return bucket.on_device() ? bucket.dtype : bucket.gradients;  // their views are on the device
    case Buckets::Hold::kInPlace:
      return bucket.gradients;
    case Buckets::Hold::kWide:
      return dtype_size(bucket.dtype) == 2 && !bucket.sparse ? Dtype::kF32 : bucket.dtype;
    default:
      return bucket.dtype;
  }
}

// Returns the size of consecutive parts, each aligned.
uint64_t total_of(const std::vector<uint64_t>& sizes, uint64_t alignment) {
  uint64_t total = 0;
  for (const uint64_t size : sizes) total += round_up(size, alignment);
  return total;
}

std::vector<std::byte*> cut(std::byte* at, const std::vector<uint64_t>& sizes, uint64_t alignment) {
  std::vector<std::byte*> parts;
  parts.reserve(sizes.size());
  for (const uint64_t size : sizes) {
    parts.push_back(at);
    if (at != nullptr) at += round_up(size, alignment);
  }
  return parts;
}

// Allocates one slab for consecutive, aligned parts; none if the total is 0.
Status take(std::shared_ptr<Arena> arena, const std::vector<uint64_t>& sizes, uint64_t alignment,
            const char* what, Slab* slab, std::vector<std::byte*>* parts) {
  slab->arena = std::move(arena);
  const uint64_t total = total_of(sizes, alignment);
  if (total > 0) {
    WEFT_TRY(slab->arena->allocate(total, &slab->memory).with_prefix(cat(what, ": ")));
  }
  slab->bytes = total;
  *parts = cut(slab->memory, sizes, alignment);
  return {};
}

// Places the parts in an existing slab; false if they fit with none of the alignments.
bool fit(const Slab& slab, const std::vector<uint64_t>& sizes, std::initializer_list<uint64_t> alignments,
         std::vector<std::byte*>* parts) {
  for (const uint64_t alignment : alignments) {
    if (total_of(sizes, alignment) > slab.bytes) continue;
    *parts = cut(slab.memory, sizes, alignment);
    return true;
  }
  return false;
}

}  // namespace

Status Slab::pin(const DeviceReach& reach) {
  if (reach.accelerator == nullptr || bytes == 0) return {};
  WEFT_TRY(arena->pin(*reach.accelerator, reach.device, memory, round_up(bytes, Arena::kAlignment)));
  pinned_by = reach.accelerator;
  return {};
}

Slab::~Slab() {
  if (pinned_by != nullptr) arena->unpin(memory);
  // The arena fails only for memory that it did not allocate.
  if (!left && memory != nullptr) static_cast<void>(arena->free(memory));
}

Buckets::Sizes Buckets::measure(const Plan& plan, Hold hold) {
  Sizes sizes;
  sizes.buckets.reserve(plan.buckets.size());
  for (const PlannedBucket& b : plan.buckets) {
    const Dtype held = held_as(b, hold);
    held_.push_back(held);
    sizes.held.push_back(b.count * dtype_size(held));
    // A bucket of empty parameters still gets its own address.
    sizes.buckets.push_back(b.sparse ? 0 : std::max<uint64_t>({b.bytes(), sizes.held.back(), 1}));
  }
  held_bytes_ = sizes.held;
  return sizes;
}

void Buckets::place(const Manifest& manifest, const Plan& plan) {
  layouts_.reserve(manifest.params.size());
  places_.reserve(manifest.params.size());
  for (uint32_t i = 0; i < manifest.params.size(); i++) {
    const Layout& layout = layouts_.emplace_back(manifest.params[i]);
    const uint32_t bucket = plan.bucket_of[i];
    const Dtype held = bucket == kNoBucket ? manifest.params[i].dtype : held_[bucket];
    std::byte* const memory =
        bucket == kNoBucket ? nullptr : buffers_[bucket] + plan.offset_of[i] * dtype_size(held);
    const bool sparse = manifest.params[i].sparse();
    places_.push_back({memory, &layout, bucket, held, static_cast<uint8_t>(dtype_size(held)),
                       static_cast<uint8_t>(layout.element_bytes()), sparse ? 0 : layout.count(), sparse,
                       manifest.params[i].on_device()});
  }
}

Status Buckets::make(const Manifest& manifest, const Plan& plan, Hold hold, std::shared_ptr<Arena> arena,
                     bool retain, const HostAllocator& allocator, const DeviceReach& reach,
                     std::shared_ptr<Buckets>* out) {
  std::shared_ptr<Buckets> made(new Buckets);
  const Sizes sizes = made->measure(plan, hold);
  made->slab_ = std::make_shared<Slab>();
  if (hold == Hold::kInPlace) {
    made->buffers_ = buckets_in_place(manifest, plan);
  } else {
    WEFT_TRY(take(std::move(arena), sizes.buckets, Arena::kAlignment, "memory of the buckets",
                  made->slab_.get(), &made->buffers_));
  }
  WEFT_TRY(made->slab_->pin(reach).with_prefix("pinning the memory of the buckets: "));
  if (retain) {
    made->retained_slab_ = std::make_shared<Slab>();
    WEFT_TRY(take(std::make_shared<HeapArena>(allocator), sizes.held, kScratchAlignment,
                  "memory of retained contributions", made->retained_slab_.get(), &made->retained_));
  }
  made->place(manifest, plan);
  *out = std::move(made);
  return {};
}

std::shared_ptr<Buckets> Buckets::make_over(const Buckets& old, const Manifest& manifest, const Plan& plan,
                                            Hold hold) {
  std::shared_ptr<Buckets> made(new Buckets);
  const Sizes sizes = made->measure(plan, hold);
  if (!fit(*old.slab_, sizes.buckets, {Arena::kAlignment, kScratchAlignment}, &made->buffers_))
    return nullptr;
  // Retained contributions are copied as bytes, so they need no alignment.
  if (old.retained_slab_ && !fit(*old.retained_slab_, sizes.held, {kScratchAlignment, 1}, &made->retained_)) {
    return nullptr;
  }
  made->slab_ = old.slab_;
  made->retained_slab_ = old.retained_slab_;
  made->place(manifest, plan);
  return made;
}

uint64_t Buckets::longest_bytes() const {
  return held_bytes_.empty() ? 0 : *std::max_element(held_bytes_.begin(), held_bytes_.end());
}

void convert_in_place(const DeviceOps& ops, std::byte* buffer, Dtype from, Dtype to, uint64_t first,
                      uint64_t count, double scale) {
  constexpr uint64_t kBlock = 1024;
  alignas(64) std::byte block[kBlock * sizeof(double)];
  const uint64_t from_bytes = dtype_size(from), to_bytes = dtype_size(to);
  CopyArgs args;
  args.src_dtype = from;
  args.dst_dtype = to;
  args.scale = scale;
  for (uint64_t done = 0; done < count; done += args.count) {
    args.count = std::min(kBlock, count - done);
    const uint64_t at = to_bytes > from_bytes ? first + count - done - args.count : first + done;
    args.src = buffer + at * from_bytes;
    args.dst = to_bytes == from_bytes ? buffer + at * to_bytes : block;
    ops.copy(args);
    if (args.dst == block) std::memcpy(buffer + at * to_bytes, block, args.count * to_bytes);
  }
}

Status HookScratch::make(const Schedule& schedule, std::shared_ptr<Arena> arena, const DeviceReach& reach,
                         bool guarded, std::unique_ptr<HookScratch>* out) {
  std::unique_ptr<HookScratch> made(new HookScratch);
  std::vector<uint64_t> sizes;
  sizes.reserve(schedule.buckets.size());
  for (const HookedBucket& b : schedule.buckets) {
    sizes.push_back(guarded ? round_up(b.scratch_bytes + kGuardBytes, kScratchAlignment) : b.scratch_bytes);
  }
  WEFT_TRY(
      take(std::move(arena), sizes, kScratchAlignment, "scratch of the hook", &made->slab_, &made->parts_));
  // A hook's result may be in its scratch.
  WEFT_TRY(made->slab_.pin(reach).with_prefix("pinning the scratch of the hook: "));
  for (size_t b = 0; guarded && b < sizes.size(); b++) {
    const uint64_t used = schedule.buckets[b].scratch_bytes;
    made->guards_.emplace_back(made->parts_[b] + used, sizes[b] - used);
    std::fill(made->guards_[b].begin(), made->guards_[b].end(), kGuard);
  }
  *out = std::move(made);
  return {};
}

bool HookScratch::intact(uint32_t bucket) const {
  if (guards_.empty()) return true;
  const std::span<const std::byte> guard = guards_[bucket];
  return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == kGuard; });
}

uint64_t Buckets::memory_bytes() const {
  uint64_t bytes = (buffers_.capacity() + retained_.capacity()) * sizeof(std::byte*) + held_.capacity() +
                   held_bytes_.capacity() * sizeof(uint64_t) + layouts_.capacity() * sizeof(Layout) +
                   places_.capacity() * sizeof(Place);
  for (const Layout& layout : layouts_) bytes += layout.memory_bytes();
  return bytes;
}

}  // namespace weft
