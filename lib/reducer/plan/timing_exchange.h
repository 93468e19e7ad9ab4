// The timing exchange of the ranks before a plan is made by the model: when gradients were ready on the last
// rank, and the cost of collectives here. Used by Reducer::take_plan, collective. Threads: one thread at a
// time, which polls the engine.
#pragma once

#include <memory>

#include "base/clock.h"
#include "comm/comm.h"
#include "reducer/plan/planner.h"

namespace weft {

struct Timings {
  ReadyTimes ready;   // per parameter, the latest time of all ranks
  TransferCost cost;  // on the slowest rank
};

// The memory for measurements, if it is not host memory.
struct TimingMemory {
  std::byte* memory = nullptr;
  uint64_t bytes = 0;
  const DeviceCall* device = nullptr;
};

// Exchanges ready times and measures collectives; the result is equal on all ranks. mine: this rank's times.
// Measures all-reduces of growing sizes up to the largest bucket's, for a few tenths of a second at most.
// Allocates memory for one of them meanwhile, unless place has some. kNoMemory on all ranks if one of them
// has none; otherwise the communicator's failure.
Status exchange_timings(Comm& comm, const std::shared_ptr<Lane>& lane, const ReadyTimes& mine,
                        uint64_t largest_bytes, Deadline deadline, std::unique_ptr<Timings>* result,
                        const TimingMemory& place = {});

}  // namespace weft
