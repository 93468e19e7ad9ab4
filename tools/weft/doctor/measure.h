// Measures latency and bandwidth between pairs of ranks with weft_send and weft_recv.
#pragma once

#include <utility>
#include <vector>

#include "facts.h"
#include "weft/job.h"

namespace doctor {

// Measures every pair once, some tens of milliseconds each; disjoint pairs at the same time. Collective.
// Returns the pairs of which this rank is the lower one. Throws std::runtime_error with Weft's text.
std::vector<Transfer> measure_all(Job& job);
// Measures these pairs, one after the other, while all other ranks wait. Collective. Returns as measure_all.
std::vector<Transfer> measure_alone(Job& job, const std::vector<std::pair<int, int>>& pairs);

// Returns the rank that measures with `rank` in a round, of 0 to rounds - 1; -1: none. In the rounds of
// `size` ranks every pair occurs once.
int partner(int rank, int round, int size);
inline int rounds(int size) {
  return size % 2 == 0 ? size - 1 : size;
}

}  // namespace doctor
