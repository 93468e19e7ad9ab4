// The source of Weft's large blocks of host memory: the C library, or functions of the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "base/callback_mark.h"

namespace weft {

// Threads: any thread.
struct HostAllocator {
  void* (*allocate)(void* user_data, uint64_t size, uint64_t alignment, int32_t device) = nullptr;
  void (*release)(void* user_data, void* block, uint64_t size, int32_t device) = nullptr;
  void* user_data = nullptr;

  // Allocates a block. size is a multiple of alignment. Returns null when memory is exhausted.
  std::byte* get(uint64_t size, uint64_t alignment) const {
    if (allocate == nullptr) return static_cast<std::byte*>(std::aligned_alloc(alignment, size));
    const CallbackMark mark(CallbackMark::Calls::kNone);
    return static_cast<std::byte*>(allocate(user_data, size, alignment, 0));
  }
  void put(std::byte* block, uint64_t size) const {
    if (release != nullptr) {
      const CallbackMark mark(CallbackMark::Calls::kNone);
      release(user_data, block, size, 0);
    } else {
      std::free(block);
    }
  }
};

}  // namespace weft
