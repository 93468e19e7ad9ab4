// How many system calls this process makes: a child of it traces it (ptrace), and every one stops twice, so
// times mean nothing meanwhile.
#pragma once

#include <cstdint>

struct SystemCalls {
  uint64_t work = 0;
  uint64_t waiting = 0;  // giving the core away, sleeping, waking who sleeps: as many as timing will have it
};

// Begin, for the rest of this process's life. Throws std::runtime_error where it may not be traced. Before
// there are threads.
void count_system_calls();
bool system_calls_are_counted();
// Since then, on all threads. Any thread; makes none.
SystemCalls system_calls_now();
