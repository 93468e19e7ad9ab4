#include "calibration.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace weft::shm {
namespace {

constexpr int kRepeats = 4;
constexpr int kLeastRepeats = 2;  // the first one finds cold memory

// Two routes, of which one is for smaller and the other for larger operations.
struct Contest {
  Contest(Route of_small, Route of_large, std::vector<uint64_t> at)
      : small(of_small), large(of_large), sizes(std::move(at)) {
    small_ns.assign(sizes.size(), UINT64_MAX);
    large_ns.assign(sizes.size(), UINT64_MAX);
  }
  // How many of the sizes belong to the small route. Times have noise: what is chosen loses least, as a
  // factor of time over all sizes.
  size_t boundary() const {
    const auto loss = [&](size_t at, bool is_small) {
      const auto mine = static_cast<double>(std::max<uint64_t>((is_small ? small_ns : large_ns)[at], 1));
      const auto best = static_cast<double>(std::max<uint64_t>(std::min(small_ns[at], large_ns[at]), 1));
      return std::log(mine / best);
    };
    size_t chosen = 0;
    double least = INFINITY;
    for (size_t boundary = 0; boundary <= sizes.size(); boundary++) {
      double sum = 0;
      for (size_t at = 0; at < sizes.size(); at++) sum += loss(at, at < boundary);
      if (sum > least) continue;
      least = sum;
      chosen = boundary;
    }
    return chosen;
  }

  Route small, large;
  std::vector<uint64_t> sizes;
  std::vector<uint64_t> small_ns, large_ns;  // the least of each
  int repeats = 0;                           // that are complete
};

Contest one_shot_contest() {
  return {Route::kOneShot, Route::kStaged, {8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10}};
}
Contest pull_contest() {
  return {Route::kStaged, Route::kPulled, {512 << 10, 1 << 20, 2 << 20, 4 << 20}};
}

// One repeat of all its sizes. *over: the time is.
Status repeat(Trial& trial, Contest& contest, bool* over) {
  for (size_t at = 0; at < contest.sizes.size(); at++) {
    for (const bool is_small : {true, false}) {
      uint64_t slowest = 0, elapsed = 0;
      WEFT_TRY(trial.run(is_small ? contest.small : contest.large, contest.sizes[at], &slowest, &elapsed));
      uint64_t& least = (is_small ? contest.small_ns : contest.large_ns)[at];
      least = std::min(least, slowest);
      if (elapsed < kCalibrationNs) continue;
      *over = true;
      if (is_small || at + 1 < contest.sizes.size()) return {};
    }
  }
  contest.repeats++;
  return {};
}

}  // namespace

uint64_t largest_trial(bool pull) {
  return (pull ? pull_contest() : one_shot_contest()).sizes.back();
}

Status calibrate(Trial& trial, bool one_shot, bool pull, Thresholds* thresholds) {
  Contest shorts = one_shot_contest();
  Contest longs = pull_contest();
  bool over = false;
  for (int i = 0; i < kRepeats && !over; i++) {
    if (one_shot) WEFT_TRY(repeat(trial, shorts, &over));
    if (pull && !over) WEFT_TRY(repeat(trial, longs, &over));
  }
  if (shorts.repeats >= kLeastRepeats) {
    const size_t boundary = shorts.boundary();
    thresholds->one_shot = boundary == 0 ? shorts.sizes[0] / 2 : shorts.sizes[boundary - 1];
    thresholds->origin = Thresholds::Origin::kMeasured;
  }
  if (longs.repeats >= kLeastRepeats) {
    const size_t boundary = longs.boundary();
    thresholds->pull = boundary == longs.sizes.size() ? kNever : longs.sizes[boundary];
    thresholds->origin = Thresholds::Origin::kMeasured;
  }
  return {};
}

}  // namespace weft::shm
