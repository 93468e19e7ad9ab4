#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <memory>

namespace weft {
namespace {

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CpuSet = std::unique_ptr<cpu_set_t, FreeSet>;

}  // namespace

// The kernel refuses a set that is smaller than its own (EINVAL), so the loop doubles the size.
Bytes allowed_cores() {
  Bytes cores;
  for (uint64_t room = CPU_SETSIZE; room <= kMostCores; room *= 2) {
    const CpuSet set(CPU_ALLOC(room));
    if (set == nullptr) return {};
    const size_t size = CPU_ALLOC_SIZE(room);
    CPU_ZERO_S(size, set.get());
    if (::sched_getaffinity(0, size, set.get()) == 0) {
      for (uint64_t core = 0; core < room; core++) {
        if (CPU_ISSET_S(core, size, set.get())) add_core(&cores, core);
      }
      return cores;
    }
    if (errno != EINVAL) return {};
  }
  return {};
}

bool run_on_core(uint64_t core) {
  const CpuSet set(CPU_ALLOC(core + 1));
  if (set == nullptr) return false;
  const size_t size = CPU_ALLOC_SIZE(core + 1);
  CPU_ZERO_S(size, set.get());
  CPU_SET_S(core, size, set.get());
  return ::sched_setaffinity(0, size, set.get()) == 0;
}

void add_core(Bytes* set, uint64_t core) {
  if (core / 8 >= set->size()) set->resize(core / 8 + 1);
  (*set)[core / 8] |= std::byte{1} << core % 8;
}

uint64_t count_cores(ByteView set) {
  uint64_t count = 0;
  for (const std::byte bits : set)
    count += static_cast<uint64_t>(std::popcount(std::to_integer<unsigned>(bits)));
  return count;
}

}  // namespace weft
