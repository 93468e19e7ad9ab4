// The analytic model of a collective: walks through schedules with the times of messages and memory.
#pragma once

#include <vector>

#include "schedules/operation.h"

namespace weft::bench {

// Costs in seconds. Each rank has a link of its own, which carries its messages one after the other in each
// direction, and one core, which sends, receives and folds.
struct Costs {
  double latency = 0;      // from the end of sending to the receiver's core
  double message = 0;      // core time of each message, on both sides
  double link_byte = 0;    // the link's time for a byte
  double core_byte = 0;    // core time for each byte that is sent or received
  double memory_byte = 0;  // core time for each byte that works read or write
};

// Returns the seconds until the last rank has its result. All ranks' schedules are walked. Memory grows with
// all their messages. Throws std::logic_error if a message has no receiver.
double walk_all(const Operation& operation, const Costs& costs);

// Returns the same for rank 0 alone, with the assumption that its peers send when it sends the same step. So
// it suits symmetric algorithms, with any number of ranks. A message for which rank 0 has no counterpart was
// sent at the beginning.
double walk_one(const Operation& operation, const Costs& costs);

}  // namespace weft::bench
