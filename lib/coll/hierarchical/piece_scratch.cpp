#include "coll/hierarchical/piece_scratch.h"

#include <cstdlib>

#include "base/round_up.h"
#include "base/text.h"

namespace weft::coll {

Status PieceScratch::reserve(uint64_t bytes) {
  if (bytes <= part_bytes_) return {};
  release();
  in_arena_ = arena_->allocate(kParts * bytes, &memory_).ok();
  if (!in_arena_) memory_ = static_cast<std::byte*>(std::aligned_alloc(kCacheLine, kParts * bytes));
  if (memory_ == nullptr) {
    return Status::error(Code::kNoMemory, cat("cannot allocate ", bytes_text(kParts * bytes),
                                              " of scratch memory for hierarchical collectives"));
  }
  part_bytes_ = bytes;
  return {};
}

void PieceScratch::release() {
  if (memory_ == nullptr) return;
  if (in_arena_) {
    (void)arena_->free(memory_).ok();
  } else {
    std::free(memory_);
  }
  memory_ = nullptr;
  part_bytes_ = 0;
}

Status PieceScratch::reserve_pinned(const DeviceCall& call, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (pinned_ != nullptr) return {};
  accelerator_ = call.accelerator;
  WEFT_TRY(accelerator_->allocate_pinned(call.device, kParts * bytes, &pinned_));
  pinned_part_bytes_ = bytes;
  return {};
}

void PieceScratch::free_pinned() {
  if (pinned_ == nullptr) return;
  accelerator_->free_pinned(pinned_);
  pinned_ = nullptr;
  pinned_part_bytes_ = 0;
}

}  // namespace weft::coll
