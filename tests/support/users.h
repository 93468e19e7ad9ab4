// Processes of tests, which may become another user.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>

#include "support/catch.h"

namespace weft::test {

inline constexpr uid_t kNobody = 65534;

// Skips the test case unless this process can become another user. Root in a rootless container cannot: its
// user namespace may have no other.
inline void need_other_users() {
  if (::geteuid() != 0) WEFT_SKIP("becomes another user, which needs root");
  std::ifstream map("/proc/self/uid_map");
  uint64_t first = 0, outside = 0, count = 0;
  while (map >> first >> outside >> count) {
    if (first <= kNobody && kNobody - first < count) return;
  }
  WEFT_SKIP("becomes another user, and this user namespace has none");
}

// Runs body in a process of its own, as another user if uid is not 0. Its exit code is the result.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<int()>& body, uid_t uid = 0) {
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent || (uid != 0 && ::setuid(uid) != 0)) ::_exit(100);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // setting the uid has cleared it
    ::_exit(body());
  }
  ~ChildProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  int wait() {
    int state = 0;
    REQUIRE(::waitpid(pid_, &state, 0) == pid_);
    pid_ = -1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace weft::test
