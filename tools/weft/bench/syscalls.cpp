#include "syscalls.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace {

// State shared by tracer and traced process.
struct SharedCounts {
  std::atomic<int> state{0};  // 0: wait for permission to trace, 1: given, 2: it counts, below 0: -errno
  std::atomic<uint64_t> work{0};
  std::atomic<uint64_t> waiting{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

SharedCounts* shared_counts = nullptr;

bool waits(uint64_t number) {
  switch (number) {
    case SYS_futex:
    case SYS_sched_yield:
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
    case SYS_restart_syscall:
#ifdef SYS_poll
    case SYS_poll:
#endif
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
    case SYS_ppoll:
    case SYS_epoll_pwait:
      return true;
    default:
      return false;
  }
}

void* number(uintptr_t value) {
  return reinterpret_cast<void*>(value);
}

// Handles a stop of the traced process: counts it if a system call begins. Returns the signal to deliver on
// continuing.
uintptr_t at_stop(pid_t thread, int status) {
  const int signal = WSTOPSIG(status);
  if (signal == (SIGTRAP | 0x80)) {
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, thread, number(sizeof info), &info) > 0 &&
        info.op == PTRACE_SYSCALL_INFO_ENTRY) {
      (waits(info.entry.nr) ? shared_counts->waiting : shared_counts->work)
          .fetch_add(1, std::memory_order_release);
    }
    return 0;
  }
  return status >> 16 != 0 ? 0 : static_cast<uintptr_t>(signal);  // an event of tracing itself, or a signal
}

// Runs the tracer until the process ends.
[[noreturn]] void trace(pid_t process) {
  while (shared_counts->state.load() == 0) ::usleep(1000);
  const uintptr_t options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE;
  if (::ptrace(PTRACE_SEIZE, process, nullptr, number(options)) != 0 ||
      ::ptrace(PTRACE_INTERRUPT, process, nullptr, nullptr) != 0) {
    shared_counts->state.store(-errno);
    ::_exit(1);
  }
  for (;;) {
    int status = 0;
    const pid_t thread = ::waitpid(-1, &status, __WALL);
    if (thread < 0 && errno == EINTR) continue;
    if (thread < 0) ::_exit(0);
    if (!WIFSTOPPED(status)) {
      if (thread == process) ::_exit(0);
      continue;
    }
    const uintptr_t signal = at_stop(thread, status);
    ::ptrace(PTRACE_SYSCALL, thread, nullptr, number(signal));
    shared_counts->state.store(2);
  }
}

}  // namespace

void count_system_calls() {
  void* const page =
      ::mmap(nullptr, sizeof(SharedCounts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    throw std::runtime_error(std::string("--count-system-calls: mmap: ") + std::strerror(errno));
  }
  shared_counts = new (page) SharedCounts();
  const pid_t process = ::getpid();
  const pid_t tracer = ::fork();
  if (tracer == 0) trace(process);
  if (tracer < 0)
    throw std::runtime_error(std::string("--count-system-calls: fork: ") + std::strerror(errno));
  // Yama lets only parents trace, and processes that are named here.
  (void)::prctl(PR_SET_PTRACER, tracer, 0, 0, 0);
  shared_counts->state.store(1);
  while (shared_counts->state.load() == 1) ::usleep(1000);
  const int state = shared_counts->state.load();
  if (state < 0) {
    ::waitpid(tracer, nullptr, 0);
    shared_counts = nullptr;
    throw std::runtime_error(
        std::string("--count-system-calls: this process may not be traced with ptrace: ") +
        std::strerror(-state));
  }
}

bool system_calls_are_counted() {
  return shared_counts != nullptr;
}

SystemCalls system_calls_now() {
  if (shared_counts == nullptr) return {};
  return {shared_counts->work.load(std::memory_order_acquire),
          shared_counts->waiting.load(std::memory_order_acquire)};
}
