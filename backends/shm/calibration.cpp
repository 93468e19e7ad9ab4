#include "calibration.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace weft::shm {
namespace {

constexpr int kTurns = 4;
constexpr int kShortRepeats = 6;  // in a turn: short operations cost little, and vary most
constexpr int kLeastRepeats = 2;  // the first one finds cold memory

// Two routes, of which one is for smaller and the other for larger operations.
struct Contest {
  Contest(Route of_small, Route of_large, std::vector<uint64_t> at)
      : small(of_small),
        large(of_large),
        sizes(std::move(at)),
        small_ns(sizes.size()),
        large_ns(sizes.size()) {}

  // How many of the sizes belong to the small route. Times have noise: what is chosen loses least, as a
  // factor of time over all sizes. Where that is equal, or as good as equal, the fewest (or the most).
  size_t boundary(bool most = false) const {
    std::vector<double> losses(sizes.size() + 1);
    for (size_t boundary = 0; boundary <= sizes.size(); boundary++) {
      for (size_t at = 0; at < sizes.size(); at++) losses[boundary] += loss(at, at < boundary);
    }
    const double least = *std::min_element(losses.begin(), losses.end());
    size_t chosen = most ? sizes.size() : 0;
    while (losses[chosen] > least + kEqual) chosen += most ? -1 : 1;
    return chosen;
  }

  Route small, large;
  std::vector<uint64_t> sizes;
  std::vector<std::vector<uint64_t>> small_ns, large_ns;  // of each size, every repeat's
  int repeats = 0;                                        // that are complete

 private:
  static constexpr double kEqual = 0.05;

  double loss(size_t at, bool is_small) const {
    const double of_small = typical(small_ns[at]), of_large = typical(large_ns[at]);
    return std::log((is_small ? of_small : of_large) / std::min(of_small, of_large));
  }
  // The lower quartile: neither what luck nor what an interrupt made of it.
  static double typical(std::vector<uint64_t> times) {
    const auto quartile = times.begin() + static_cast<ptrdiff_t>(times.size() / 4);
    std::nth_element(times.begin(), quartile, times.end());
    return static_cast<double>(std::max<uint64_t>(*quartile, 1));
  }
};

Contest one_shot_contest() {
  return {Route::kOneShot,
          Route::kTwoShot,
          {2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10}};
}
Contest pull_contest() {
  return {Route::kTwoShot, Route::kPulled, {512 << 10, 1 << 20, 2 << 20, 4 << 20}};
}
Contest level_contest() {
  return {Route::kOneLevel, Route::kTwoLevel, {256 << 10, 512 << 10, 1 << 20, 2 << 20, kLargestLevelTrial}};
}

// One repeat of all its sizes, both routes one right after the other and each of them first by turns. *over:
// `until_ns` is.
Status repeat(Trial& trial, Contest& contest, uint64_t until_ns, bool* over) {
  for (size_t at = 0; at < contest.sizes.size(); at++) {
    for (const int of : {0, 1}) {
      const bool is_small = (of == 0) == (contest.repeats % 2 == 0);
      uint64_t slowest = 0, elapsed = 0;
      if (*over) return {};
      WEFT_TRY(trial.run(is_small ? contest.small : contest.large, contest.sizes[at], &slowest, &elapsed));
      (is_small ? contest.small_ns : contest.large_ns)[at].push_back(slowest);
      *over = elapsed >= until_ns;
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
  for (int turn = 0; turn < kTurns && !over; turn++) {
    for (int i = 0; one_shot && i < kShortRepeats && !over; i++) {
      WEFT_TRY(repeat(trial, shorts, kCalibrationNs, &over));
    }
    if (pull && !over) WEFT_TRY(repeat(trial, longs, kCalibrationNs, &over));
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

Status calibrate_levels(Trial& trial, Thresholds* thresholds) {
  Contest levels = level_contest();
  uint64_t first_ns = 0, begin_ns = 0;
  WEFT_TRY(trial.run(Route::kOneLevel, levels.sizes.front(), &first_ns, &begin_ns));
  bool over = false;
  for (int turn = 0; turn < kTurns && !over; turn++) {
    WEFT_TRY(repeat(trial, levels, begin_ns + kCalibrationNs, &over));
  }
  if (levels.repeats < kLeastRepeats) return {};
  const size_t boundary = levels.boundary(true);
  thresholds->two_level = boundary == levels.sizes.size() ? kNever : levels.sizes[boundary];
  thresholds->origin = Thresholds::Origin::kMeasured;
  return {};
}

}  // namespace weft::shm
