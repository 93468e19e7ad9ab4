#include "device/arena.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/guard.h"
#include "base/round_up.h"
#include "base/text.h"
#include "device/accelerator.h"

namespace weft {
namespace {

// Returns 0 on overflow.
uint64_t rounded(uint64_t size) {
  return size > UINT64_MAX - Arena::kAlignment ? 0 : round_up(size, Arena::kAlignment);
}

}  // namespace

bool ExtentAllocator::allocate(uint64_t size, uint64_t* offset) {
  size = rounded(size);
  if (size == 0) return false;
  const std::lock_guard lock(mutex_);
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [start, room] = *it;
    if (room < size) continue;
    free_.erase(it);
    if (room > size) free_.emplace(start + size, room - size);
    used_.emplace(start, size);
    *offset = start;
    return true;
  }
  if (size > limit_ - end_) return false;
  *offset = end_;
  used_.emplace(end_, size);
  end_ += size;
  return true;
}

uint64_t ExtentAllocator::free(uint64_t offset) {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(offset);
  if (used == used_.end()) return 0;
  auto extent = used_.extract(used);  // keeps the map node, so that freeing needs no memory
  const uint64_t size = extent.mapped();
  if (keep_freed_) return size;
  auto it = free_.insert(std::move(extent)).position;
  if (const auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it != free_.begin()) {
    const auto before = std::prev(it);
    if (before->first + before->second == it->first) {
      before->second += it->second;
      free_.erase(it);
    }
  }
  return size;
}

void ExtentAllocator::keep_freed() {
  const std::lock_guard lock(mutex_);
  keep_freed_ = true;
}

void ExtentAllocator::reclaim() {
  const std::lock_guard lock(mutex_);
  keep_freed_ = false;
  free_.clear();
  uint64_t at = 0;
  for (const auto& [start, size] : used_) {
    if (start > at) free_.emplace(at, start - at);
    at = start + size;
  }
  if (end_ > at) free_.emplace(at, end_ - at);
}

uint64_t ExtentAllocator::high_water() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

Status Arena::pin(Accelerator& accelerator, int device, std::byte* memory, uint64_t size) {
  const std::shared_lock pages(pages_mutex_);
  {
    const std::lock_guard lock(pins_mutex_);
    const auto known = pins_.find(memory);
    if (known != pins_.end() && known->second.registered) return {};
  }
  WEFT_TRY(accelerator.pin(device, memory, size));
  const std::lock_guard lock(pins_mutex_);
  pins_[memory] = {&accelerator, device, size, true};
  return {};
}

void Arena::unpin(std::byte* memory) {
  const std::shared_lock pages(pages_mutex_);
  Pin pin;
  {
    const std::lock_guard lock(pins_mutex_);
    const auto known = pins_.find(memory);
    if (known == pins_.end()) return;
    pin = known->second;
    pins_.erase(known);
  }
  if (pin.registered) pin.accelerator->unpin(memory);
}

Status Arena::change_pages(const std::function<Status()>& change) {
  const std::unique_lock pages(pages_mutex_);
  // The list cannot change meanwhile: pin and unpin hold pages_mutex_ shared.
  for (auto& [memory, pin] : pins_) {
    if (pin.registered) pin.accelerator->unpin(memory);
  }
  Status status = change();
  for (auto& [memory, pin] : pins_) {
    if (!pin.registered) continue;
    Status again = pin.accelerator->pin(pin.device, memory, pin.size);
    pin.registered = again.ok();
    if (status.ok()) status = std::move(again);
  }
  return status;
}

HeapArena::~HeapArena() {
  for (const auto& [memory, size] : blocks_) allocator_.put(memory, size);
}

Status HeapArena::allocate(uint64_t size, std::byte** memory) {
  const uint64_t whole = rounded(size);
  std::byte* const block = whole == 0 ? nullptr : allocator_.get(whole, kAlignment);
  if (block == nullptr)
    return Status::error(Code::kNoMemory,
                         cat("cannot allocate ", bytes_text(size), " of communicator memory"));
  std::memset(block, 0, whole);
  Status noted = guarded_run([&] {
    const std::lock_guard lock(mutex_);
    blocks_.emplace(block, whole);
    bytes_ += whole;
  });
  if (!noted.ok()) {
    allocator_.put(block, whole);
    return noted;
  }
  *memory = block;
  return {};
}

Status HeapArena::free(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto it = blocks_.find(memory);
  if (it == blocks_.end())
    return Status::error(
        Code::kArg,
        "weft_comm_free: the pointer is not from weft_comm_alloc of this communicator, or has been freed");
  bytes_ -= it->second;
  allocator_.put(memory, it->second);
  blocks_.erase(it);
  return {};
}

uint64_t HeapArena::populated_bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace weft
