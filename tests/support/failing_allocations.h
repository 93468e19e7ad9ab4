// Replaces operator new, malloc and its relatives, mmap and pthread_create by ones that fail at a call that
// the test chooses, and counts what is not given back. One source file of a program includes it. It cannot be
// used under a sanitizer, which replaces them itself.
#pragma once

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>

namespace weft::test {

// Counts calls of one kind of the whole process while a failure is armed, except those of exempt threads. The
// chosen call fails; the calls after it succeed again. operator new does not count as malloc.
class FailingAllocations {
 public:
  enum class Kind { kNew, kMalloc, kMap, kThread };

  // Arms the n-th call from now on. 0: no call fails; they are only counted.
  static void arm(Kind kind, uint64_t n) {
    const Exempt exempt;
    ::backtrace(frames_, 1);  // the first call loads a library
    frame_count_ = 0;
    seen_ = 0;
    fails_ = n;
    kind_ = kind;
    armed_ = true;
  }
  // Returns the number of calls since arm().
  static uint64_t disarm() {
    armed_ = false;
    return seen_;
  }
  // The stack of the call that failed since arm(): its innermost frame first. Empty if none failed.
  static void* const* frames() { return frames_; }
  static int frame_count() { return frame_count_; }
  // Exempts the calling thread for a scope: calls of the test's own code are neither counted nor failed.
  struct Exempt {
    Exempt() { exempt_++; }
    ~Exempt() { exempt_--; }
    Exempt(const Exempt&) = delete;
    Exempt& operator=(const Exempt&) = delete;
  };

  static bool fails(Kind kind) {
    if (!armed_ || kind_ != kind || exempt_ != 0 || ++seen_ != fails_) return false;
    const Exempt exempt;
    frame_count_ = ::backtrace(frames_, kMostFrames);
    return true;
  }
  // The same for functions of C, which set errno.
  static bool fails(Kind kind, int error) {
    const bool failed = fails(kind);
    if (failed) errno = error;
    return failed;
  }

 private:
  static constexpr int kMostFrames = 64;
  static inline std::atomic<bool> armed_{false};
  static inline std::atomic<Kind> kind_{Kind::kNew};
  static inline std::atomic<uint64_t> seen_{0};
  static inline std::atomic<uint64_t> fails_{0};
  static inline void* frames_[kMostFrames] = {};
  static inline std::atomic<int> frame_count_{0};
  static inline thread_local int exempt_ = 0;
};

// Counts memory that the process has allocated and not given back, armed or not.
struct LiveMemory {
  static inline std::atomic<int64_t> objects{0};  // blocks of operator new
  static inline std::atomic<int64_t> blocks{0};   // of malloc and its relatives
  static inline std::atomic<int64_t> mapped{0};   // bytes of mmap, without the C library's own
};

inline bool malloc_fails() {
  return FailingAllocations::fails(FailingAllocations::Kind::kMalloc, ENOMEM);
}
inline void* count_block(void* block) {
  if (block != nullptr) LiveMemory::blocks++;
  return block;
}
inline int64_t whole_pages(size_t size) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return static_cast<int64_t>((size + page - 1) / page * page);
}

}  // namespace weft::test

extern "C" {
// Other names of glibc's own functions.
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* memory);

void* malloc(size_t size) noexcept {
  return weft::test::malloc_fails() ? nullptr : weft::test::count_block(__libc_malloc(size));
}
void* calloc(size_t count, size_t size) noexcept {
  return weft::test::malloc_fails() ? nullptr : weft::test::count_block(__libc_calloc(count, size));
}
void* realloc(void* memory, size_t size) noexcept {
  if (memory == nullptr) return ::malloc(size);
  if (weft::test::malloc_fails()) return nullptr;
  if (size == 0) weft::test::LiveMemory::blocks--;  // frees the block
  return __libc_realloc(memory, size);
}
void* memalign(size_t alignment, size_t size) noexcept {
  return weft::test::malloc_fails() ? nullptr : weft::test::count_block(__libc_memalign(alignment, size));
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  return ::memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) noexcept {
  void* const block = ::memalign(alignment, size);
  if (block == nullptr) return ENOMEM;
  *memory = block;
  return 0;
}
void free(void* memory) noexcept {
  if (memory != nullptr) weft::test::LiveMemory::blocks--;
  __libc_free(memory);
}

// The symbol is mmap64, which programs and libraries use that are compiled for large files.
void* mmap(void* where, size_t size, int protection, int flags, int file, off_t offset) noexcept {
  using weft::test::FailingAllocations;
  if (FailingAllocations::fails(FailingAllocations::Kind::kMap, ENOMEM)) return MAP_FAILED;
  const auto address = ::syscall(SYS_mmap, where, size, protection, flags, file, offset);
  // MAP_FIXED replaces a part of an earlier mapping.
  if (address != -1 && (flags & MAP_FIXED) == 0) {
    weft::test::LiveMemory::mapped += weft::test::whole_pages(size);
  }
  return reinterpret_cast<void*>(address);
}
int munmap(void* where, size_t size) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_munmap, where, size));
  if (result == 0) weft::test::LiveMemory::mapped -= weft::test::whole_pages(size);
  return result;
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) noexcept {
  using weft::test::FailingAllocations;
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (FailingAllocations::fails(FailingAllocations::Kind::kThread)) return EAGAIN;
  return real(thread, attributes, body, argument);
}
}  // extern "C"

namespace weft::test {

inline void* allocate_or_fail(size_t size, size_t alignment) {
  void* memory = nullptr;
  if (!FailingAllocations::fails(FailingAllocations::Kind::kNew)) {
    memory = alignment <= alignof(std::max_align_t) ? __libc_malloc(size == 0 ? 1 : size)
                                                    : __libc_memalign(alignment, size);
  }
  if (memory == nullptr) throw std::bad_alloc();
  LiveMemory::objects++;
  return memory;
}
inline void give_back(void* memory) {
  if (memory != nullptr) LiveMemory::objects--;
  __libc_free(memory);
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
  weft::test::give_back(memory);
}
void operator delete(void* memory, size_t) noexcept {
  weft::test::give_back(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  weft::test::give_back(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  weft::test::give_back(memory);
}
