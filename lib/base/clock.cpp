#include "base/clock.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "base/pause.h"

namespace weft {
namespace {

// Idle rounds after which a waiting thread yields its core, and after which it sleeps.
constexpr uint32_t kSpinRounds = 2000;
constexpr uint32_t kYieldRounds = 4000;
constexpr long kNapNs = 50'000;

}  // namespace

uint64_t SystemClock::now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void SystemClock::relax(uint32_t round) {
  if (round < kSpinRounds && !gives_way()) {
    cpu_pause();
  } else if (round < kYieldRounds) {
    sched_yield();
  } else {
    const timespec nap{0, kNapNs};
    nanosleep(&nap, nullptr);
  }
}

void SystemClock::sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t until_ns) {
  timespec until{};
  until.tv_sec = static_cast<time_t>(until_ns / 1'000'000'000u);
  until.tv_nsec = static_cast<long>(until_ns % 1'000'000'000u);
  // The absolute timeout uses CLOCK_MONOTONIC, as now_ns does.
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, until_ns == UINT64_MAX ? nullptr : &until,
          nullptr, FUTEX_BITSET_MATCH_ANY);
}

void SystemClock::wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

Deadline Deadline::after(Clock& clock, int64_t timeout_ms, int64_t default_ms) {
  if (timeout_ms == 0) timeout_ms = default_ms;
  if (timeout_ms == -1) return never();
  if (timeout_ms == -2) return Deadline(0);
  const uint64_t ns = static_cast<uint64_t>(timeout_ms) * 1'000'000u;
  const uint64_t now = clock.now_ns();
  if (static_cast<uint64_t>(timeout_ms) > (UINT64_MAX - 1 - now) / 1'000'000u) return never();
  return Deadline(now + ns);
}

int Deadline::remaining_ms(Clock& clock) const {
  if (ns_ == UINT64_MAX) return -1;
  const uint64_t now = clock.now_ns();
  if (now >= ns_) return 0;
  return static_cast<int>(std::min<uint64_t>((ns_ - now + 999'999u) / 1'000'000u, INT_MAX));
}

}  // namespace weft
