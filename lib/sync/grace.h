// How long a program's thread waits for what has a deadline of its own. Threads: any thread.
#pragma once

#include "base/clock.h"

namespace weft {

// Beyond the deadline, for a lane or a stage to notice that it has passed.
inline Deadline with_grace(Deadline deadline) {
  constexpr uint64_t kGraceNs = 2'000'000'000;
  return deadline.ns() > UINT64_MAX - kGraceNs ? deadline : Deadline::at(deadline.ns() + kGraceNs);
}

}  // namespace weft
