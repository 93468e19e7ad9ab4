// CPU pauses between two polls of memory that other threads or processes write. Threads: any thread.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace weft {

// Pauses for a few to some tens of nanoseconds, depending on the processor; the core's other hardware thread
// runs meanwhile.
inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Returns how many pauses take about `ns`, from 1 to kMostPauses. Measures for about 100 microseconds at
// most.
inline constexpr int kMostPauses = 64;
int pauses_in(uint64_t ns, Clock& clock);

}  // namespace weft
