// Finds the fastest path for each size by running it. Called by group_setup.cpp on the thread that makes the
// communicator, once all ranks have mapped each other's memory. The times of the slowest rank decide. All
// ranks learn them, so all make the same choice.
#pragma once

#include "thresholds.h"

namespace weft::shm {

enum class Route : uint8_t { kOneShot, kTwoShot, kPulled };

// Runs one all_reduce of `bytes` bytes along a route. The memory is rewritten before.
class Tuner {
 public:
  virtual ~Tuner() = default;
  // slowest_ns: the time of the slowest rank. elapsed_ns: the time since the first run began. Both are equal
  // on all ranks.
  virtual Status run(Route route, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns) = 0;
};

// No measurement begins after this time. What is not known by then stays unchanged.
inline constexpr uint64_t kCalibrationNs = 30'000'000;

// Returns the size in bytes of the largest operation that is measured.
uint64_t largest_tuned(bool pull);

// Measures `one_shot` and `pull` of *thresholds where the arguments ask for it. Sets the origin to kMeasured
// if anything was measured.
Status calibrate(Tuner& tuner, bool one_shot, bool pull, Thresholds* thresholds);

}  // namespace weft::shm
