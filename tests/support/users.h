// Other users, for tests in which a process becomes one.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

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

}  // namespace weft::test
