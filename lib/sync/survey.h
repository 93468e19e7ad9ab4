// What the ranks must know of each other before a plan is made by the model: when gradients were ready on the
// last rank, and what collectives cost here. Used by Reducer::take_plan, collective. Threads: one thread at a
// time, driving progress.
#pragma once

#include <memory>

#include "base/clock.h"
#include "core/comm.h"
#include "sync/planner.h"

namespace weft {

struct Survey {
  ReadyTimes ready;   // of each parameter the latest of all ranks
  TransferCost cost;  // of the slowest rank
};

// Where to measure, if not in host memory.
struct SurveyPlace {
  std::byte* memory = nullptr;
  uint64_t bytes = 0;
  const DeviceCall* device = nullptr;
};

// Equal on all ranks. mine: this rank's times. Measures all-reduces of growing sizes up to that of the
// largest bucket, for some tenths of a second at most; takes memory for one of them meanwhile, unless
// place has some. kNoMemory on all ranks if one of them has none; otherwise the communicator's failure.
Status survey(Comm& comm, const std::shared_ptr<Lane>& lane, const ReadyTimes& mine, uint64_t largest_bytes,
              Deadline deadline, std::unique_ptr<Survey>* result, const SurveyPlace& place = {});

}  // namespace weft
