// Counts the system calls of this process. A child process traces it (ptrace), and every call stops twice, so
// times are meaningless meanwhile.
#pragma once

#include <cstdint>

struct SystemCalls {
  uint64_t work = 0;
  uint64_t waiting = 0;  // yielding the core, sleeping, waking sleepers: their number depends on timing
};

// Begins counting, for the rest of the process's life. Throws std::runtime_error if it may not be traced.
// Call it before threads exist.
void count_system_calls();
bool system_calls_are_counted();
// Returns the counts since count_system_calls(), of all threads. Any thread; makes no system call.
SystemCalls system_calls_now();
