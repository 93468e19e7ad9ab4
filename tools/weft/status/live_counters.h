// The counters in a live process's answer to `weft status`: samples of its metrics (lib/metrics), of which
// `weft top` makes rates.
#pragma once

#include <map>
#include <string>
#include <utility>

// The counters of one rank of a communicator, since it was created.
struct LiveCounters {
  struct Waited {
    double steps = 0;    // in which this rank waited longest for the other one
    double seconds = 0;  // that the other one cost this rank in these steps
  };
  double steps = 0;  // synchronised ones of its reducers
  double bytes = 0;  // payload that this rank moved, without what it received
  std::map<int, Waited> waited;
};

// By the communicator's digits and the rank in it.
using CountersByRank = std::map<std::pair<std::string, int>, LiveCounters>;

// Parses samples in Prometheus's text format. Lines that are not understood are left out. No content is
// trusted.
CountersByRank parse_counters(const std::string& samples);
