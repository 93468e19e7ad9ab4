// How long synchronised steps took: means of all, percentiles of the last ones, and for whom this rank
// waited. Part of a Reducer. Threads: guarded by the reducer's mutex.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/wait_notes.h"

namespace weft {

// Of one step, nanoseconds.
struct StepTimes {
  uint64_t step_ns = 0;           // begin to the end of finish
  uint64_t compute_ns = 0;        // begin to the call of finish
  uint64_t communication_ns = 0;  // first launch to last completion
  uint64_t overlap_ns = 0;        // of that, before the call of finish
  uint64_t exposed_ns = 0;        // inside finish
};

// What waiting for one rank has cost.
struct Waited {
  uint64_t ns = 0;       // this rank
  uint64_t last = 0;     // steps in which it was the straggler
  uint64_t last_ns = 0;  // Straggler::ns of these
};

class History {
 public:
  static constexpr size_t kSteps = 128;  // that percentiles are of
  static constexpr auto kTimes = {&StepTimes::step_ns, &StepTimes::compute_ns, &StepTimes::communication_ns,
                                  &StepTimes::overlap_ns, &StepTimes::exposed_ns};

  void add(const StepTimes& times) {
    recent_[steps_++ % kSteps] = times;
    for (const auto what : kTimes) sum_.*what += times.*what;
  }
  uint64_t mean(uint64_t StepTimes::* what) const { return steps_ == 0 ? 0 : sum_.*what / steps_; }
  // The least time that at least `percent` of the last steps did not exceed.
  uint64_t percentile(uint64_t StepTimes::* what, uint64_t percent) const {
    std::array<uint64_t, kSteps> sorted;
    const size_t count = recent();
    if (count == 0) return 0;
    for (size_t i = 0; i < count; i++) sorted[i] = recent_[i].*what;
    std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(count));
    return sorted[std::max<size_t>((count * percent + 99) / 100, 1) - 1];
  }
  size_t recent() const { return static_cast<size_t>(std::min<uint64_t>(steps_, kSteps)); }

  // What identifies the parameters that were absent from a step.
  void add_pattern(uint64_t pattern) {
    if (!std::exchange(has_pattern_, true)) pattern_ = pattern;
    same_pattern_ &= pattern == pattern_;
  }
  // No step was any other than the first: it could be static.
  bool same_pattern() const { return same_pattern_; }

  // Of the last step. waited_ns: per rank.
  void add_waits(const std::vector<uint64_t>& waited_ns, const Straggler& straggler) {
    waited_.resize(waited_ns.size());
    for (size_t r = 0; r < waited_ns.size(); r++) waited_[r].ns += waited_ns[r];
    straggler_ = straggler;
    if (straggler.rank < 0) return;
    Waited& waited = waited_[static_cast<size_t>(straggler.rank)];
    waited.last++;
    waited.last_ns += straggler.ns;
  }
  // Ranks have other numbers from here on.
  void forget_waits(int ranks) {
    waited_.assign(static_cast<size_t>(ranks), {});
    straggler_ = {};
  }
  uint64_t memory_bytes() const { return waited_.capacity() * sizeof(Waited); }  // beyond the object
  const std::vector<Waited>& waited() const { return waited_; }
  const Straggler& straggler() const { return straggler_; }

 private:
  uint64_t steps_ = 0;
  StepTimes sum_;
  std::array<StepTimes, kSteps> recent_{};
  uint64_t pattern_ = 0;  // of the first step
  bool has_pattern_ = false;
  bool same_pattern_ = true;
  std::vector<Waited> waited_;
  Straggler straggler_;
};

}  // namespace weft
