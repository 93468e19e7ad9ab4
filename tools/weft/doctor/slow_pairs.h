// Finds the pairs of ranks whose transfers are slow. Used while measuring, to measure them once more, and by
// the check.
#pragma once

#include <vector>

#include "facts.h"

namespace doctor {

struct SlowPair {
  const Transfer* transfer;
  bool inside;  // both ranks are on one host
  bool narrow;  // less than half of the median bandwidth of such pairs
  bool late;    // several times their median latency
  double rate;  // the medians
  double latency;
};

// Compares pairs inside hosts, and those between hosts, with the median of their kind.
std::vector<SlowPair> slow_pairs(const Inspection& inspection);

}  // namespace doctor
