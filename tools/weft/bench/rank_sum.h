// The exact rank-sum test of two samples: Mann and Whitney, On a Test of Whether one of Two Random Variables
// is Stochastically Larger than the Other (1947). Called by `weft bench --check`. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Returns the number of pairs of a value of `first` and a larger one of `second`. Equal values do not count,
// so ties never make a difference look less likely than it is.
uint64_t pairs_above(const std::vector<double>& first, const std::vector<double>& second);

// Returns the probability of at least `pairs` pairs above among m and n values, if all values come from one
// distribution without ties. m, n: 1 to some hundreds. Takes time proportional to m * m * n * n.
double rank_sum_chance(size_t m, size_t n, uint64_t pairs);
