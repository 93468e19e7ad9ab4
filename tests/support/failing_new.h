// Replaces operator new by one that fails at an allocation that the test chooses. One source file of a
// program includes it. It cannot be used under a sanitizer, which replaces operator new itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace weft::test {

// Counts allocations of the whole process while a failure is armed, except those of exempt threads. The
// chosen allocation throws std::bad_alloc; the allocations after it succeed again.
class FailingNew {
 public:
  // Arms the n-th allocation from now on. 0: no allocation fails; they are only counted.
  static void arm(uint64_t n) {
    seen_ = 0;
    fails_ = n;
    armed_ = true;
  }
  // Returns the number of allocations since arm().
  static uint64_t disarm() {
    armed_ = false;
    return seen_;
  }
  // Exempts the calling thread for a scope: allocations of the test's own code are neither counted nor
  // failed.
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

// The other forms (array and nothrow) call these.
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
