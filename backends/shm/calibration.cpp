#include "calibration.h"

#include <iterator>

#include "transport/crossover.h"

namespace weft::shm {
namespace {

constexpr int kTurns = 4;
constexpr int kShortRepeats = 6;  // repeats in a row: short operations cost little and vary most
constexpr int kLeastRepeats = 2;  // the first one touches cold memory

constexpr uint64_t kOneShotSizes[] = {2 << 10,  4 << 10,  8 << 10,   16 << 10,
                                      32 << 10, 64 << 10, 128 << 10, 256 << 10};
constexpr uint64_t kPullSizes[] = {512 << 10, 1 << 20, 2 << 20, 4 << 20};

CrossoverSearch::Run along(Tuner& tuner, Route small, Route large) {
  return [&tuner, small, large](bool is_small, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns) {
    return tuner.run(is_small ? small : large, bytes, slowest_ns, elapsed_ns);
  };
}

}  // namespace

uint64_t largest_tuned(bool pull) {
  return pull ? *std::rbegin(kPullSizes) : *std::rbegin(kOneShotSizes);
}

Status calibrate(Tuner& tuner, bool one_shot, bool pull, Thresholds* thresholds) {
  const CrossoverSearch::Run run_short = along(tuner, Route::kOneShot, Route::kTwoShot);
  const CrossoverSearch::Run run_long = along(tuner, Route::kTwoShot, Route::kPulled);
  CrossoverSearch shorts(kOneShotSizes);
  CrossoverSearch longs(kPullSizes);
  bool over = false;
  for (int turn = 0; turn < kTurns && !over; turn++) {
    for (int i = 0; one_shot && i < kShortRepeats && !over; i++) {
      WEFT_TRY(shorts.repeat(run_short, kCalibrationNs, &over));
    }
    if (pull && !over) WEFT_TRY(longs.repeat(run_long, kCalibrationNs, &over));
  }
  if (shorts.repeats() >= kLeastRepeats) {
    const size_t boundary = shorts.boundary(0);
    thresholds->one_shot = boundary == 0 ? kOneShotSizes[0] / 2 : kOneShotSizes[boundary - 1];
    thresholds->origin = Thresholds::Origin::kMeasured;
  }
  if (longs.repeats() >= kLeastRepeats) {
    const size_t boundary = longs.boundary(0);
    thresholds->pull = boundary == std::size(kPullSizes) ? kNever : kPullSizes[boundary];
    thresholds->origin = Thresholds::Origin::kMeasured;
  }
  return {};
}

}  // namespace weft::shm
