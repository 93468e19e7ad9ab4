// Two ways to execute the same operation, one for smaller and one for larger ones, and the size at which they
// change places: found by running both, for shm and for lib/coll. On the thread that makes the communicator.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"

namespace weft {

class Contest {
 public:
  // Executes one operation, the small or the large way. slowest_ns: what it took on the slowest rank.
  // elapsed_ns: since the first one began. Both the same on all ranks.
  using Run = std::function<Status(bool small, uint64_t bytes, uint64_t* slowest_ns, uint64_t* elapsed_ns)>;

  // sizes: ascending, in bytes. most_ns: sizes of which a run both ways is expected to take longer are left
  // out, and those that take a quarter of it run in every third repeat alone.
  // Of the times of a size and a way the one counts that 1 / part of them are below.
  explicit Contest(std::span<const uint64_t> sizes, uint64_t most_ns = UINT64_MAX, size_t part = 4);

  // One repeat of the sizes, both ways one right after the other and each of them first by turns. Nothing
  // begins once *over is set, which is when until_ns have elapsed.
  Status repeat(const Run& run, uint64_t until_ns, bool* over);
  int repeats() const { return repeats_; }  // that are complete

  // Leave out what has not run so often both ways, and all that is larger.
  void leave_out(size_t least_runs);
  // Those that were not left out.
  const std::vector<uint64_t>& sizes() const { return sizes_; }
  // How many of them belong to the small way. Times have noise: what is chosen loses least, as a factor of
  // time over all sizes. Of those that lose at most `equal` more, as its logarithm, the nearest to
  // `preferred`.
  size_t boundary(size_t preferred, double equal = 0.05) const;

 private:
  double typical(std::vector<uint64_t> times) const;
  double loss(size_t at, bool is_small) const;

  std::vector<uint64_t> sizes_;
  const uint64_t most_ns_;
  const size_t part_;
  std::vector<std::vector<uint64_t>> small_ns_, large_ns_;  // of each size, every repeat's
  std::vector<uint64_t> both_ns_;                           // of each size, lately
  int repeats_ = 0;
};

}  // namespace weft
