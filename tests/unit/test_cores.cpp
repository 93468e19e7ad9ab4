// lib/base/cores: a thread's cores, on machines with more cores than fit into a cpu_set_t.
#include "base/cores.h"

#include <sched.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "support/catch.h"

using namespace weft;

namespace {

// Simulates the kernel: the cores in a thread's set, and the number of possible cores.
std::atomic<uint64_t> machine_cores{0};  // 0: this machine's own
constexpr uint64_t kAllowed[] = {3, 1023, 1024, 4000};

}  // namespace

extern "C" int sched_getaffinity(pid_t, size_t size, cpu_set_t* set) noexcept {
  const uint64_t cores = machine_cores;
  if (size * 8 < cores) {
    errno = EINVAL;
    return -1;
  }
  CPU_ZERO_S(size, set);
  for (const uint64_t core : kAllowed) {
    if (core < cores) CPU_SET_S(core, size, set);
  }
  return 0;
}

TEST_CASE("a thread's cores are all found, however many the machine has") {
  for (const uint64_t cores : {uint64_t{1024}, uint64_t{1025}, uint64_t{2048}, uint64_t{8192}, kMostCores}) {
    INFO(cores);
    machine_cores = cores;
    const Bytes found = allowed_cores();
    uint64_t expected = 0;
    for (const uint64_t core : kAllowed) {
      CHECK(has_core(found, core) == (core < cores));
      expected += core < cores ? 1 : 0;
    }
    CHECK(count_cores(found) == expected);
    CHECK_FALSE(has_core(found, 4));
  }
}

TEST_CASE("with more cores than any kernel supports, a thread's cores count as unknown") {
  machine_cores = 2 * kMostCores;
  CHECK(allowed_cores().empty());
  CHECK(count_cores({}) == 0);
}
