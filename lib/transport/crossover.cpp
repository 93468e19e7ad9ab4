#include "transport/crossover.h"

#include <algorithm>
#include <cmath>

namespace weft {
namespace {

size_t distance(size_t a, size_t b) {
  return a > b ? a - b : b - a;
}

}  // namespace

CrossoverSearch::CrossoverSearch(std::span<const uint64_t> sizes, uint64_t most_ns, size_t part)
    : sizes_(sizes.begin(), sizes.end()),
      most_ns_(most_ns),
      part_(part),
      small_ns_(sizes_.size()),
      large_ns_(sizes_.size()),
      both_ns_(sizes_.size()) {}

Status CrossoverSearch::repeat(const Run& run, uint64_t until_ns, bool* over) {
  for (size_t at = 0; at < sizes_.size(); at++) {
    if (repeats_ % 3 != 0 && both_ns_[at] > most_ns_ / 4) break;
    uint64_t both_ns = 0;
    for (const int of : {0, 1}) {
      const bool is_small = (of == 0) == (repeats_ % 2 == 0);
      uint64_t slowest_ns = 0, elapsed_ns = 0;
      if (*over) return {};
      WEFT_TRY(run(is_small, sizes_[at], &slowest_ns, &elapsed_ns));
      (is_small ? small_ns_ : large_ns_)[at].push_back(slowest_ns);
      both_ns += slowest_ns;
      *over = elapsed_ns >= until_ns;
    }
    both_ns_[at] = both_ns;
    // The next size is larger, and takes longer in proportion.
    if (at + 1 < sizes_.size() && both_ns * sizes_[at + 1] / sizes_[at] > most_ns_) sizes_.resize(at + 1);
  }
  repeats_++;
  return {};
}

void CrossoverSearch::leave_out(size_t least_runs) {
  size_t kept = 0;
  while (kept < sizes_.size() && std::min(small_ns_[kept].size(), large_ns_[kept].size()) >= least_runs)
    kept++;
  sizes_.resize(kept);
}

size_t CrossoverSearch::boundary(size_t preferred, double equal) const {
  std::vector<double> losses(sizes_.size() + 1);
  for (size_t boundary = 0; boundary <= sizes_.size(); boundary++) {
    for (size_t at = 0; at < sizes_.size(); at++) losses[boundary] += loss(at, at < boundary);
  }
  const double most = *std::min_element(losses.begin(), losses.end()) + equal;
  size_t chosen = losses.size();
  for (size_t boundary = 0; boundary < losses.size(); boundary++) {
    const bool nearer =
        chosen == losses.size() || distance(boundary, preferred) < distance(chosen, preferred);
    if (losses[boundary] <= most && nearer) chosen = boundary;
  }
  return chosen;
}

// Returns a low quantile, which lucky runs and interrupts affect least.
double CrossoverSearch::typical(std::vector<uint64_t> times) const {
  const auto low = times.begin() + static_cast<ptrdiff_t>(times.size() / part_);
  std::nth_element(times.begin(), low, times.end());
  return static_cast<double>(std::max<uint64_t>(*low, 1));
}

double CrossoverSearch::loss(size_t at, bool is_small) const {
  const double of_small = typical(small_ns_[at]), of_large = typical(large_ns_[at]);
  return std::log((is_small ? of_small : of_large) / std::min(of_small, of_large));
}

}  // namespace weft
