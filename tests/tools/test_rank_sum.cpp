// The rank-sum test of `weft bench --check`, compared with published tables and with a count of all orders.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "support/catch.h"
#include "weft/bench/rank_sum.h"

namespace {

// Counts all choices of m of m + n ranks for the first sample; all are equally likely.
double by_counting(size_t m, size_t n, uint64_t pairs) {
  std::vector<int> of_second(m + n, 0);
  std::fill(of_second.begin() + static_cast<std::ptrdiff_t>(m), of_second.end(), 1);
  uint64_t all = 0, enough = 0;
  do {
    uint64_t first = 0, above = 0;
    for (const int second : of_second) second != 0 ? above += first : ++first;
    ++all;
    if (above >= pairs) ++enough;
  } while (std::next_permutation(of_second.begin(), of_second.end()));
  return static_cast<double>(enough) / static_cast<double>(all);
}

std::vector<double> ascending(size_t count, double from) {
  std::vector<double> values(count);
  std::iota(values.begin(), values.end(), from);
  return values;
}

}  // namespace

TEST_CASE("probabilities equal those of counting every order") {
  for (size_t m = 1; m <= 6; ++m) {
    for (size_t n = 1; n <= 6; ++n) {
      for (uint64_t pairs = 0; pairs <= m * n; ++pairs) {
        CAPTURE(m, n, pairs);
        CHECK(std::abs(rank_sum_chance(m, n, pairs) - by_counting(m, n, pairs)) < 1e-12);
      }
    }
  }
}

// One-sided, at 1 %: the largest rank sum that is as rare from below, in pairs. From the tables of Mann and
// Whitney 1947, which every book of nonparametric statistics has.
TEST_CASE("critical values equal those of the tables") {
  struct Critical {
    size_t m, n;
    uint64_t rare;  // this many pairs or fewer are rare
  };
  for (const Critical& c :
       {Critical{5, 5, 1}, {5, 6, 2}, {6, 6, 3}, {7, 7, 6}, {8, 8, 9}, {10, 10, 19}, {20, 20, 114}}) {
    CAPTURE(c.m, c.n);
    const uint64_t all = c.m * c.n;
    CHECK(rank_sum_chance(c.m, c.n, all - c.rare) <= 0.01);
    CHECK(rank_sum_chance(c.m, c.n, all - c.rare - 1) > 0.01);
  }
}

TEST_CASE("five and five runs can be significant at 1 %, four and four cannot") {
  CHECK(std::abs(rank_sum_chance(5, 5, 25) - 1.0 / 252) < 1e-12);
  CHECK(rank_sum_chance(4, 4, 16) > 0.01);
  CHECK(rank_sum_chance(1, 98, 98) > 0.01);
  CHECK(rank_sum_chance(1, 100, 100) < 0.01);
}

TEST_CASE("probabilities with a hundred runs of each stay exact") {
  CHECK(std::abs(rank_sum_chance(100, 100, 0) - 1) < 1e-9);
  CHECK(rank_sum_chance(100, 100, 10'000) < 1e-58);
  // As many orders lie above as below.
  const double upper = rank_sum_chance(100, 100, 5'000);
  const double above = rank_sum_chance(100, 100, 5'001);
  CHECK(std::abs(upper + above - 1) < 1e-9);
  CHECK(upper > above);
}

TEST_CASE("ties do not count as pairs above") {
  CHECK(pairs_above(ascending(3, 0), ascending(3, 0)) == 3);
  CHECK(pairs_above({1, 1}, {1, 1}) == 0);
  CHECK(pairs_above(ascending(4, 0), ascending(5, 10)) == 20);
  CHECK(pairs_above(ascending(4, 10), ascending(5, 0)) == 0);
  CHECK(pairs_above({2, 1}, {1.5}) == 1);
}
