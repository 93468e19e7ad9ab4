// Which path is the faster one at which size, found by running it: by founding.cpp, on the
// thread that makes the communicator, once all ranks reach each other's memory. What decides are the times of
// the slowest rank, which all ranks learn, so all find the same.
#pragma once

#include "thresholds.h"

namespace weft::shm {

enum class Route : uint8_t { kOneShot, kTwoShot, kPulled, kOneLevel, kTwoLevel };  // the last two on arenas

// Runs one all_reduce of so many bytes of memory, rewritten before, along a route.
class Trial {
 public:
  virtual ~Trial() = default;
  // slowest_ns: what it took on the slowest rank. elapsed_ns: since the first one began. The same on all
  // ranks.
  virtual Status run(Route route, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns) = 0;
};

// No trial begins when so much time is over. What is not known by then stays as it was.
inline constexpr uint64_t kCalibrationNs = 30'000'000;

// The largest operation that is tried.
uint64_t largest_trial(bool pull);

// Measure what `one_shot` and `pull` say of *thresholds; its origin becomes kMeasured if anything was.
Status calibrate(Trial& trial, bool one_shot, bool pull, Thresholds* thresholds);
// The same of two_level, in kCalibrationNs of its own. Two levels must be the faster ones, since sums have
// other bits there.
inline constexpr uint64_t kLargestLevelTrial = 4 << 20;
Status calibrate_levels(Trial& trial, Thresholds* thresholds);

}  // namespace weft::shm
