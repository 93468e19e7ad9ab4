#include "base/pause.h"

#include <algorithm>

namespace weft {

int pauses_in(uint64_t ns, Clock& clock) {
  constexpr uint64_t kSamples = 8, kPauses = 200;
  uint64_t least = UINT64_MAX;  // interruptions only make a sample longer
  for (uint64_t sample = 0; sample < kSamples; sample++) {
    const uint64_t start = clock.now_ns();
    for (uint64_t i = 0; i < kPauses; i++) cpu_pause();
    least = std::min(least, clock.now_ns() - start);
  }
  if (least == 0) return kMostPauses;
  return static_cast<int>(std::clamp<uint64_t>((ns * kPauses + least / 2) / least, 1, kMostPauses));
}

}  // namespace weft
