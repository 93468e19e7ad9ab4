// The metrics of a reducer: its statistics. Threads: any thread.
#pragma once

#include "metrics/text.h"
#include "reducer/data.h"

namespace weft {

void describe_reducer(const ReducerData& r, MetricsText* text);

}  // namespace weft
