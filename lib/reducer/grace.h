// How long a program's thread waits for an operation with a deadline of its own. Threads: any thread.
#pragma once

#include "base/clock.h"

namespace weft {

// Adds the time that a lane or a stage needs to notice that its deadline has passed.
inline Deadline with_grace(Deadline deadline) {
  constexpr uint64_t kGraceNs = 2'000'000'000;
  return deadline.ns() > UINT64_MAX - kGraceNs ? deadline : Deadline::at(deadline.ns() + kGraceNs);
}

}  // namespace weft
