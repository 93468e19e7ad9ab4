// The metrics of a reducer: its statistics. Threads: any thread.
#pragma once

#include <cstdint>

#include "metrics/text.h"
#include "reducer/data.h"

namespace weft {

// number: of the reducer, in its process; it distinguishes the reducers of a communicator.
void describe_reducer(const ReducerData& r, uint64_t number, MetricsText* text);

}  // namespace weft
