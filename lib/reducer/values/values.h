// Start-up of a new reducer: settles values and re-planning among the ranks before the first step.
#pragma once

#include "base/status.h"

namespace weft {

struct Agreement;
struct ReducerState;

// Collective, for a state whose lane is open. Copies rank 0's values of the parameters to all ranks, unless
// WEFT_REDUCER_KEEP_VALUES is set. Decides whether the reducer re-plans automatically
// (ReducerState::replan). given_plan: the program brought its own plan, on all ranks. kMismatch names a
// parameter that has a value on one rank and none on another. The program's thread.
Status start_together(const Agreement& agreement, ReducerState* state, bool given_plan);

}  // namespace weft
