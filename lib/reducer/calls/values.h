// The values of the parameters between steps: broadcasts from one rank, and comparisons. Collective; all
// communication is on the reducer's own lane. Threads: one thread at a time, as begin and finish.
#pragma once

#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "reducer/data.h"

namespace weft {

struct Agreement;

// Collective, for a state whose lane is open. Copies rank 0's values of the parameters to all ranks, unless
// WEFT_REDUCER_KEEP_VALUES is set. Decides whether the reducer re-plans automatically
// (ReducerState::replan). given_plan: the program brought its own plan, on all ranks. kMismatch names a
// parameter that has a value on one rank and none on another. The program's thread.
Status start_together(const Agreement& agreement, ReducerState* state, bool given_plan);
// given: an error that the caller found; the other ranks receive it.
Status broadcast_values(ReducerData& r, const weft_broadcast_options& options, const Status& given);
Status compare_values(ReducerData& r);
// Finds the first parameter that differs, after the ranks' digests differ. Collective. The values of the
// ranks in `stale` are ignored.
Status name_difference(const ReducerState& s, const std::vector<uint32_t>& params,
                       const std::vector<uint64_t>& digests, const std::vector<int>& stale,
                       Deadline deadline);

}  // namespace weft
