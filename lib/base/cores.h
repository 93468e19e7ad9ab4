// Which cores a thread may run on, however many the machine has: cpu_set_t ends at 1,024. A set is its bits:
// core c is bit c % 8 of byte c / 8. Pure functions but for those that ask the system. Threads: any thread.
#pragma once

#include "base/buffer.h"

namespace weft {

// More than Linux can be built for.
inline constexpr uint64_t kMostCores = 65536;

// Of the calling thread; empty where the system does not say.
Bytes allowed_cores();
// Only on that core; false where the system refuses.
bool run_on_core(uint64_t core);

inline bool has_core(ByteView set, uint64_t core) {
  return core / 8 < set.size() && (std::to_integer<unsigned>(set[core / 8]) >> core % 8 & 1) != 0;
}
void add_core(Bytes* set, uint64_t core);
uint64_t count_cores(ByteView set);

}  // namespace weft
