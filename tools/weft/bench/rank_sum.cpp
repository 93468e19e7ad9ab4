#include "rank_sum.h"

#include <algorithm>

uint64_t pairs_above(const std::vector<double>& first, const std::vector<double>& second) {
  uint64_t pairs = 0;
  for (const double value : second) {
    pairs += static_cast<uint64_t>(
        std::count_if(first.begin(), first.end(), [&](double other) { return value > other; }));
  }
  return pairs;
}

// By symmetry, at least `pairs` pairs above are as likely as at most m n - pairs. The recursion computes the
// probability of exactly u pairs above among i and j values (section 4 there). With probability j / (i + j)
// the largest value is one of the j, and is then above all i. Otherwise it is one of the i, which is in no
// such pair.
double rank_sum_chance(size_t m, size_t n, uint64_t pairs) {
  if (pairs > m * n) return 0;
  const size_t most = m * n - pairs;
  std::vector<std::vector<double>> exactly(m + 1, std::vector<double>(most + 1, 0));
  for (std::vector<double>& of_i : exactly) of_i[0] = 1;  // no value of j yet
  for (size_t j = 1; j <= n; ++j) {
    for (size_t i = 1; i <= m; ++i) {
      const double share = static_cast<double>(j) / static_cast<double>(i + j);
      // Downwards, so that [u - i] still belongs to j - 1.
      for (size_t u = std::min(most, i * j) + 1; u-- > 0;) {
        const double with_all = u >= i ? exactly[i][u - i] : 0;
        exactly[i][u] = share * with_all + (1 - share) * exactly[i - 1][u];
      }
    }
  }
  double chance = 0;
  for (const double each : exactly[m]) chance += each;
  return std::min(chance, 1.0);
}
