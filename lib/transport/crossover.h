// Autotuning by crossover search: finds the size at which the algorithm for larger operations becomes faster
// than the one for smaller operations, by running both. Used by shm and lib/coll, on the thread that creates
// the communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"

namespace weft {

class CrossoverSearch {
 public:
  // Runs one operation with the small or the large algorithm. slowest_ns: its duration on the slowest rank.
  // elapsed_ns: time since the first run began. Both are equal on all ranks.
  using Run = std::function<Status(bool small, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns)>;

  // sizes are in bytes, in ascending order. most_ns limits the total time of one run with each algorithm.
  // Sizes that are expected to take longer are left out. The first size that takes more than a quarter of
  // most_ns, and all larger ones, run in every third repeat only. Of the times of a size and an algorithm,
  // the 1 / part quantile counts.
  explicit CrossoverSearch(std::span<const uint64_t> sizes, uint64_t most_ns = UINT64_MAX, size_t part = 4);

  // Runs every size once with each algorithm, back to back; the order of the two alternates between repeats.
  // Sets *over when until_ns have elapsed; then no further run begins.
  Status repeat(const Run& run, uint64_t until_ns, bool* over);
  int repeats() const { return repeats_; }  // complete repeats

  // Drops the first size that has fewer than least_runs runs with either algorithm, and all larger sizes.
  void leave_out(size_t least_runs);
  // Returns the remaining sizes.
  const std::vector<uint64_t>& sizes() const { return sizes_; }
  // Returns how many of the sizes use the small algorithm. The choice tolerates timing noise: a boundary's
  // loss is the sum over all sizes of the logarithm of the slowdown. Of the boundaries within `equal` of the
  // smallest loss, returns the one nearest to `preferred`.
  size_t boundary(size_t preferred, double equal = 0.05) const;

 private:
  double typical(std::vector<uint64_t> times) const;
  double loss(size_t at, bool is_small) const;

  std::vector<uint64_t> sizes_;
  const uint64_t most_ns_;
  const size_t part_;
  std::vector<std::vector<uint64_t>> small_ns_, large_ns_;  // per size, one entry per repeat
  // Per size, the sum of both algorithms' times in the last repeat.
  std::vector<uint64_t> both_ns_;
  int repeats_ = 0;
};

}  // namespace weft
