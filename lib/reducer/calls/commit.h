// The outcome of each step: which steps every rank has finished. Threads: one thread at a time, as begin and
// finish.
#pragma once

#include "reducer/data.h"

namespace weft {

void read_verdict(const ReducerData& r, weft_verdict* verdict);
// Waits until every rank has finished the step. The lane runs the barrier after the step's collectives.
Status commit_step(ReducerData& r, Deadline deadline);

}  // namespace weft
