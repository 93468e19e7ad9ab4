// Sets of cores, without the limit of 1,024 cores of cpu_set_t. A set is a bit map: core c is bit c % 8 of
// byte c / 8. Pure functions, except those that query the system. Threads: any thread.
#pragma once

#include "base/buffer.h"

namespace weft {

// More than any Linux kernel supports.
inline constexpr uint64_t kMostCores = 65536;

// Returns the cores that the calling thread may run on; empty if the system does not report them.
Bytes allowed_cores();
// Restricts the calling thread to one core. Returns false if the system refuses.
bool run_on_core(uint64_t core);

inline bool has_core(ByteView set, uint64_t core) {
  return core / 8 < set.size() && (std::to_integer<unsigned>(set[core / 8]) >> core % 8 & 1) != 0;
}
void add_core(Bytes* set, uint64_t core);
uint64_t count_cores(ByteView set);

}  // namespace weft
