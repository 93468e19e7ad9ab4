// Writes one rank's schedule as a time-independent trace of SimGrid (SMPI). `smpirun -replay` executes it.
#pragma once

#include <ostream>

#include "schedules/operation.h"

namespace weft::bench {

// Writes the actions that TransportLane (coll/lane.cpp) takes, one a line. A round posts its receives and
// sends, and the next round's early ones; it then works, waits for its own messages and works again. A
// message has its header's bytes too. One "flop" of `compute` is one byte read or written in memory, so the
// platform's speed is a memory bandwidth.
void write_trace(std::ostream& out, const Operation& operation, int rank);

}  // namespace weft::bench
