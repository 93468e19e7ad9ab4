// What calls cost besides time. Counts of the whole process, its threads included.
#pragma once

#include <cstdint>

struct Counts {
  uint64_t page_faults = 0;
  uint64_t allocations = 0;  // by operator new, of this program and of what it is linked to
};

// Since the process began. Any thread.
Counts count_now();
