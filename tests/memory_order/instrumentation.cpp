// Defines what the compiler calls in code that it instruments for the thread sanitizer, and the functions of
// the system that start threads and lock mutexes. Outside of an exploration they do what the plain operation
// would. The program has one thread then.
#include <malloc.h>
#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>

#include "machine.h"

namespace weft::model {
namespace {

uintptr_t number(const volatile void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

void trace(const char* what, const volatile void* address, uint64_t value, Order order, uintptr_t call) {
  if (!tracing()) return;
  static constexpr const char* kOrders[] = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};
  const SourceLine line = source_lines({call}).at(call);
  std::fprintf(stderr, "  %d %s %zx: %llx %s, %s:%d %s\n", current_thread(), what, number(address),
               static_cast<unsigned long long>(value), kOrders[static_cast<int>(order)], line.file.c_str(),
               line.line, line.text.c_str());
}

void access(const volatile void* address, size_t size, bool writes, uintptr_t call) {
  if (!active() || size == 0) return;
  const Inside inside;
  writes ? machine().write(number(address), size, call) : machine().read(number(address), size, call);
}

template <class T>
T load(const volatile T* address, int given, uintptr_t call) {
  if (!active()) return __atomic_load_n(address, __ATOMIC_SEQ_CST);
  const Inside inside;
  const Order order = order_at(call, Kind::kLoad, given);
  point_before(call);
  const auto value = static_cast<T>(machine().load(number(address), sizeof(T), order, call));
  trace("load", address, value, order, call);
  return value;
}

template <class T>
void store(volatile T* address, T value, int given, uintptr_t call) {
  if (!active()) return __atomic_store_n(address, value, __ATOMIC_SEQ_CST);
  const Inside inside;
  const Order order = order_at(call, Kind::kStore, given);
  point_before(call);
  machine().store(number(address), sizeof(T), value, order, call);
  trace("store", address, value, order, call);
}

template <class T, class Change>
T update(volatile T* address, int given, uintptr_t call, Change&& change) {
  if (!active()) {
    const T old = *address;
    *address = change(old);
    return old;
  }
  const Inside inside;
  const Order order = order_at(call, Kind::kUpdate, given);
  point_before(call);
  const auto old =
      static_cast<T>(machine().update(number(address), sizeof(T), order, call, [&](uint64_t value) {
        return uint64_t{static_cast<T>(change(static_cast<T>(value)))};
      }));
  trace("update", address, old, order, call);
  return old;
}

template <class T>
bool compare_exchange(volatile T* address, T* expected, T desired, int given, int given_failed, bool weak,
                      uintptr_t call) {
  if (!active()) {
    const T old = *address;
    if (old == *expected) *address = desired;
    return old == *expected || (*expected = old, false);
  }
  const Inside inside;
  const Order order = order_at(call, Kind::kUpdate, given);
  const Order failed = order_at(call, Kind::kFailedUpdate, given_failed);
  point_before(call);
  const auto newest = static_cast<T>(machine().newest(number(address), sizeof(T)));
  if (newest == *expected && !(weak && choose(2) == 1)) {
    machine().update(number(address), sizeof(T), order, call, [&](uint64_t) { return uint64_t{desired}; });
    trace("exchanged", address, desired, order, call);
    return true;
  }
  *expected = static_cast<T>(machine().load(number(address), sizeof(T), failed, call));
  trace("not exchanged", address, *expected, failed, call);
  return false;
}

// A mutex of the program's is held by a fiber.
template <class Do>
int locking(Do&& act) {
  if (!active()) return 0;
  const Inside inside;
  return act();
}

void* allocate(size_t size, size_t alignment) {
  void* const memory = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

void release(void* memory) {
  if (memory != nullptr && active()) {
    const Inside inside;
    machine().free(number(memory), malloc_usable_size(memory));
  }
  std::free(memory);
}

}  // namespace
}  // namespace weft::model

using namespace weft::model;  // NOLINT: every function below is the explorer's

#define HERE reinterpret_cast<uintptr_t>(__builtin_return_address(0))

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void** at) {
  access(at, sizeof *at, false, HERE);
}
void __tsan_vptr_update(void** at, void*) {
  access(at, sizeof *at, true, HERE);
}
void __tsan_read_range(void* at, size_t size) {
  access(at, size, false, HERE);
}
void __tsan_write_range(void* at, size_t size) {
  access(at, size, true, HERE);
}

#define PLAIN(SIZE)                                  \
  void __tsan_read##SIZE(void* at) {                 \
    access(at, SIZE, false, HERE);                   \
  }                                                  \
  void __tsan_write##SIZE(void* at) {                \
    access(at, SIZE, true, HERE);                    \
  }                                                  \
  void __tsan_unaligned_read##SIZE(void* at) {       \
    access(at, SIZE, false, HERE);                   \
  }                                                  \
  void __tsan_unaligned_write##SIZE(void* at) {      \
    access(at, SIZE, true, HERE);                    \
  }                                                  \
  void __tsan_read_write##SIZE(void* at) {           \
    access(at, SIZE, true, HERE);                    \
  }                                                  \
  void __tsan_unaligned_read_write##SIZE(void* at) { \
    access(at, SIZE, true, HERE);                    \
  }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

#define ATOMIC(BITS, T)                                                                                 \
  T __tsan_atomic##BITS##_load(const volatile T* at, int order) {                                       \
    return load(at, order, HERE);                                                                       \
  }                                                                                                     \
  void __tsan_atomic##BITS##_store(volatile T* at, T value, int order) {                                \
    store(at, value, order, HERE);                                                                      \
  }                                                                                                     \
  T __tsan_atomic##BITS##_exchange(volatile T* at, T value, int order) {                                \
    return update(at, order, HERE, [&](T) { return value; });                                           \
  }                                                                                                     \
  T __tsan_atomic##BITS##_fetch_add(volatile T* at, T value, int order) {                               \
    return update(at, order, HERE, [&](T old) { return static_cast<T>(old + value); });                 \
  }                                                                                                     \
  T __tsan_atomic##BITS##_fetch_sub(volatile T* at, T value, int order) {                               \
    return update(at, order, HERE, [&](T old) { return static_cast<T>(old - value); });                 \
  }                                                                                                     \
  T __tsan_atomic##BITS##_fetch_and(volatile T* at, T value, int order) {                               \
    return update(at, order, HERE, [&](T old) { return static_cast<T>(old & value); });                 \
  }                                                                                                     \
  T __tsan_atomic##BITS##_fetch_or(volatile T* at, T value, int order) {                                \
    return update(at, order, HERE, [&](T old) { return static_cast<T>(old | value); });                 \
  }                                                                                                     \
  bool __tsan_atomic##BITS##_compare_exchange_strong(volatile T* at, T* expected, T desired, int order, \
                                                     int failed) {                                      \
    return compare_exchange(at, expected, desired, order, failed, false, HERE);                         \
  }                                                                                                     \
  bool __tsan_atomic##BITS##_compare_exchange_weak(volatile T* at, T* expected, T desired, int order,   \
                                                   int failed) {                                        \
    return compare_exchange(at, expected, desired, order, failed, true, HERE);                          \
  }                                                                                                     \
  T __tsan_atomic##BITS##_compare_exchange_val(volatile T* at, T expected, T desired, int order,        \
                                               int failed) {                                            \
    compare_exchange(at, &expected, desired, order, failed, false, HERE);                               \
    return expected;                                                                                    \
  }
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int given) {
  if (!active()) return;
  const Inside inside;
  const Order order = order_at(HERE, Kind::kFence, given);
  point();
  machine().fence(order);
  trace("fence", nullptr, 0, order, HERE);
}
void __tsan_atomic_signal_fence(int) {}

// The linker passes all calls of these functions here (--wrap).
void* __real_memcpy(void* to, const void* from, size_t size);
void* __real_memmove(void* to, const void* from, size_t size);
void* __real_memset(void* to, int value, size_t size);
void* __wrap_memcpy(void* to, const void* from, size_t size) {
  access(from, size, false, HERE);
  access(to, size, true, HERE);
  return __real_memcpy(to, from, size);
}
void* __wrap_memmove(void* to, const void* from, size_t size) {
  access(from, size, false, HERE);
  access(to, size, true, HERE);
  return __real_memmove(to, from, size);
}
void* __wrap_memset(void* to, int value, size_t size) {
  access(to, size, true, HERE);
  return __real_memset(to, value, size);
}
// Clang's names for them.
void* __tsan_memcpy(void* to, const void* from, size_t size) {
  access(from, size, false, HERE);
  access(to, size, true, HERE);
  return __real_memcpy(to, from, size);
}
void* __tsan_memmove(void* to, const void* from, size_t size) {
  access(from, size, false, HERE);
  access(to, size, true, HERE);
  return __real_memmove(to, from, size);
}
void* __tsan_memset(void* to, int value, size_t size) {
  access(to, size, true, HERE);
  return __real_memset(to, value, size);
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  return locking([&] { return lock_mutex(mutex), 0; });
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  return locking([&] { return try_lock_mutex(mutex) ? 0 : EBUSY; });
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  return locking([&] { return unlock_mutex(mutex), 0; });
}
int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*body)(void*), void* argument) noexcept {
  if (!active()) return EAGAIN;
  const Inside inside;
  *thread = static_cast<pthread_t>(start_thread([body, argument] { body(argument); }) + 1);
  return 0;
}
int pthread_join(pthread_t thread, void**) {
  const Inside inside;
  join_thread(static_cast<int>(thread) - 1);
  return 0;
}
int pthread_detach(pthread_t) noexcept {
  return 0;
}
pthread_t pthread_self() noexcept {
  return static_cast<pthread_t>(current_thread() + 1);
}
int pthread_setname_np(pthread_t, const char*) noexcept {
  return 0;
}
int pthread_sigmask(int, const sigset_t*, sigset_t*) noexcept {
  return 0;
}

}  // extern "C"

void* operator new(size_t size) {
  return allocate(size, alignof(max_align_t));
}
void* operator new[](size_t size) {
  return allocate(size, alignof(max_align_t));
}
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  release(memory);
}
