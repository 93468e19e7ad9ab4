// What calls cost besides time. Counts of the whole process, its threads included.
#pragma once

#include <cstdint>

struct Counts {
  uint64_t page_faults = 0;
  uint64_t allocations = 0;   // by operator new, of this program and of what it is linked to
  uint64_t system_calls = 0;  // but those of waiting; if they are counted (syscalls.h)
};

// Since the process began. Any thread. What it costs itself is not in the difference of two.
Counts count_before();
Counts count_after();
