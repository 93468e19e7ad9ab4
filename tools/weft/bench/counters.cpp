// Replaces operator new by one that counts. The benchmarks' program replaces it for every library that it is
// linked to, including libweft.so.
#include "counters.h"

#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "syscalls.h"

namespace {

std::atomic<uint64_t> allocations{0};

void* allocate(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* const memory = alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
                           ? std::malloc(size == 0 ? 1 : size)
                           : std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The other forms of operator new call these.
void* operator new(std::size_t size) {
  return allocate(size, 1);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

Counts count_before() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return {static_cast<uint64_t>(usage.ru_minflt + usage.ru_majflt),
          allocations.load(std::memory_order_relaxed), system_calls_now().work};
}

Counts count_after() {
  const uint64_t system_calls = system_calls_now().work;
  Counts counts = count_before();
  counts.system_calls = system_calls;
  return counts;
}
