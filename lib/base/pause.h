// How a loop that looks at memory of others lets time pass between two looks. Threads: any thread.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace weft {

// A few nanoseconds to some tens, by processor, in which the core's other thread has its units.
inline void cpu_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// How many of them take about `ns`, 1 to kMostPauses. Measured, in some 100 microseconds at most.
inline constexpr int kMostPauses = 64;
int pauses_in(uint64_t ns, Clock& clock);

}  // namespace weft
