// The exact rank-sum test of two samples: Mann and Whitney, On a Test of Whether one of Two Random Variables
// is Stochastically Larger than the Other (1947). Called by `weft bench --check`. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// How many pairs of one of `first` and one of `second` there are in which the one of `second` is larger.
// Equal ones are not, so ties never make a difference look less likely than it is.
uint64_t pairs_above(const std::vector<double>& first, const std::vector<double>& second);

// How likely so many pairs or more are above, of m and n values, if all m + n are drawn from one distribution
// without ties. m, n: 1 to some hundreds; takes time as m * m * n * n.
double rank_sum_chance(size_t m, size_t n, uint64_t pairs);
