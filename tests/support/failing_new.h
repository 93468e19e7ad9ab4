// Replaces operator new by one that fails where a test says so. For one file of a program, which is of its
// own for it; not under a sanitizer, which has its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace weft::test {

// Allocations of the whole process are counted while a failure is armed, but for those of exempt threads. One
// of them throws std::bad_alloc, those after it succeed again.
class FailingNew {
 public:
  // The n-th from now on; 0: none, they are counted alone.
  static void arm(uint64_t n) {
    seen_ = 0;
    fails_ = n;
    armed_ = true;
  }
  // How many there were.
  static uint64_t disarm() {
    armed_ = false;
    return seen_;
  }
  // The test's own code, on this thread.
  struct Exempt {
    Exempt() { exempt_++; }
    ~Exempt() { exempt_--; }
    Exempt(const Exempt&) = delete;
    Exempt& operator=(const Exempt&) = delete;
  };

  static bool fails() { return armed_ && exempt_ == 0 && ++seen_ == fails_; }

 private:
  static inline std::atomic<bool> armed_{false};
  static inline std::atomic<uint64_t> seen_{0};
  static inline std::atomic<uint64_t> fails_{0};
  static inline thread_local int exempt_ = 0;
};

inline void* allocate_or_fail(size_t size, size_t alignment) {
  void* memory = nullptr;
  if (!FailingNew::fails()) {
    if (size == 0) size = 1;
    memory = alignment <= alignof(std::max_align_t)
                 ? std::malloc(size)
                 : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  }
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace weft::test

// The other forms (of arrays, those that do not throw) call these.
void* operator new(size_t size) {
  return weft::test::allocate_or_fail(size, 1);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return weft::test::allocate_or_fail(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
