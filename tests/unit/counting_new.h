// Replaces operator new by one that counts. One source file of a program includes it.
#pragma once

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace weft::test {

inline thread_local bool counting = false;            // on this thread
inline std::atomic<bool> counting_everywhere{false};  // count on all threads of the process
inline std::atomic<uint64_t> allocations{0};          // counted while one of the flags was set
inline std::atomic<int64_t> live_bytes{0};

inline void release(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace weft::test

void* operator new(size_t size) {
  if (weft::test::counting || weft::test::counting_everywhere) weft::test::allocations++;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) {
    weft::test::live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  weft::test::release(memory);
}
void operator delete(void* memory, size_t) noexcept {
  weft::test::release(memory);
}
