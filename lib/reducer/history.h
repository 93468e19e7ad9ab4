// Durations of synchronised steps: means of all, percentiles of the latest, and the ranks for which this rank
// waited. Part of a Reducer. Threads: guarded by the reducer's mutex.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/wait_stats.h"

namespace weft {

// Durations in one step, in nanoseconds.
struct StepTimes {
  uint64_t step_ns = 0;           // begin to the end of finish
  uint64_t compute_ns = 0;        // begin to the call of finish
  uint64_t communication_ns = 0;  // first launch to last completion
  uint64_t overlap_ns = 0;        // the part of communication_ns before the call of finish
  uint64_t exposed_ns = 0;        // inside finish
};

// The cost of waiting for one rank.
struct Waited {
  uint64_t ns = 0;       // time this rank waited
  uint64_t last = 0;     // steps in which it was the straggler
  uint64_t last_ns = 0;  // sum of Straggler::ns in these steps
};

class History {
 public:
  static constexpr size_t kSteps = 128;  // steps that percentiles cover
  static constexpr auto kTimes = {&StepTimes::step_ns, &StepTimes::compute_ns, &StepTimes::communication_ns,
                                  &StepTimes::overlap_ns, &StepTimes::exposed_ns};

  void add(const StepTimes& times) {
    recent_[steps_++ % kSteps] = times;
    for (const auto what : kTimes) sum_.*what += times.*what;
  }
  uint64_t mean(uint64_t StepTimes::* what) const { return steps_ == 0 ? 0 : sum_.*what / steps_; }
  uint64_t sum(uint64_t StepTimes::* what) const { return sum_.*what; }
  // Returns the smallest time that at least `percent` of the latest steps did not exceed.
  uint64_t percentile(uint64_t StepTimes::* what, uint64_t percent) const {
    std::array<uint64_t, kSteps> sorted;
    const size_t count = recent();
    if (count == 0) return 0;
    for (size_t i = 0; i < count; i++) sorted[i] = recent_[i].*what;
    std::sort(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(count));
    return sorted[std::max<size_t>((count * percent + 99) / 100, 1) - 1];
  }
  size_t recent() const { return static_cast<size_t>(std::min<uint64_t>(steps_, kSteps)); }

  // Adds a hash of the parameters that were absent from a step.
  void add_pattern(uint64_t pattern) {
    if (!std::exchange(has_pattern_, true)) pattern_ = pattern;
    same_pattern_ &= pattern == pattern_;
  }
  // True if all steps had the first one's pattern: the reducer could be static.
  bool same_pattern() const { return same_pattern_; }

  // Adds the waits of the last step. waited_ns: per rank.
  void add_waits(const std::vector<uint64_t>& waited_ns, const Straggler& straggler) {
    waited_.resize(waited_ns.size());
    for (size_t r = 0; r < waited_ns.size(); r++) waited_[r].ns += waited_ns[r];
    straggler_ = straggler;
    waited_steps_++;
    if (straggler.rank < 0) return;
    Waited& waited = waited_[static_cast<size_t>(straggler.rank)];
    waited.last++;
    waited.last_ns += straggler.ns;
  }
  // Resets the waits, because the ranks have new numbers.
  void forget_waits(int ranks) {
    waited_.assign(static_cast<size_t>(ranks), {});
    waited_steps_ = 0;
    straggler_ = {};
  }
  uint64_t memory_bytes() const { return waited_.capacity() * sizeof(Waited); }  // beyond the object
  const std::vector<Waited>& waited() const { return waited_; }
  uint64_t waited_steps() const { return waited_steps_; }    // steps that waited() covers
  const Straggler& straggler() const { return straggler_; }  // of the last step
  // Returns the rank that cost this rank the most time as the straggler of waited_steps(); -1: none.
  int steady_straggler() const {
    const auto most = std::max_element(waited_.begin(), waited_.end(), [](const Waited& a, const Waited& b) {
      return a.last_ns < b.last_ns;
    });
    return most == waited_.end() || most->last_ns == 0 ? -1 : static_cast<int>(most - waited_.begin());
  }

 private:
  uint64_t steps_ = 0;
  StepTimes sum_;
  std::array<StepTimes, kSteps> recent_{};
  uint64_t pattern_ = 0;  // of the first step
  bool has_pattern_ = false;
  bool same_pattern_ = true;
  std::vector<Waited> waited_;
  uint64_t waited_steps_ = 0;
  Straggler straggler_;
};

}  // namespace weft
