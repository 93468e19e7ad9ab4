// lib/engine/fork_guard: detects a forked child, also if the kernel does not wipe pages.
#include "engine/fork_guard.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "support/catch.h"

using namespace weft;

namespace {

std::atomic<bool> refuses{false};
std::atomic<int> asked{0};

// Returns 0 if the child detects the fork and the parent does not.
int forked_as_seen(const ForkGuard& guard) {
  if (guard.forked()) return 2;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(guard.forked() ? 0 : 1);
  int how = 0;
  if (child < 0 || ::waitpid(child, &how, 0) != child || !WIFEXITED(how)) return 3;
  return guard.forked() ? 4 : WEXITSTATUS(how);
}

}  // namespace

// Simulates a kernel or sandbox without MADV_WIPEONFORK.
extern "C" int madvise(void* address, size_t size, int advice) noexcept {
  if (advice == MADV_WIPEONFORK) {
    asked++;
    if (refuses) {
      errno = EINVAL;
      return -1;
    }
  }
  return static_cast<int>(::syscall(SYS_madvise, address, size, advice));
}

TEST_CASE("a forked child is detected whether the kernel wipes pages at fork or refuses to") {
  for (const bool refused : {false, true}) {
    INFO("refused " << refused);
    refuses = refused;
    asked = 0;
    const ForkGuard guard;
    CHECK(asked == 1);
    CHECK(forked_as_seen(guard) == 0);
  }
}
