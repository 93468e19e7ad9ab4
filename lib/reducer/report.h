// The report of a reducer and its steps as JSON (docs/reference/report.md lists the fields), its statistics,
// and its memory.
#pragma once

#include "reducer/data.h"

namespace weft {

// Any thread.
void query_stats(const ReducerData& r, weft_reducer_stats* stats);
// Between steps, one thread at a time.
std::string report_json(const ReducerData& r);
// Records the bytes on the heap that the plan determines, for the statistics.
void note_heap_bytes(ReducerData& r);

}  // namespace weft
