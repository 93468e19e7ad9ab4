// Costs of calls besides time, counted for the whole process with all its threads.
#pragma once

#include <cstdint>

struct Counts {
  uint64_t page_faults = 0;
  uint64_t allocations = 0;   // by operator new, in this program and in the libraries that it is linked to
  uint64_t system_calls = 0;  // except those of waiting; if they are counted (syscalls.h)
};

// Counts since the process began. Any thread. The difference of both excludes the cost of these calls.
Counts count_before();
Counts count_after();
