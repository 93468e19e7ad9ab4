// Norms of a step's results (WEFT_REDUCER_NORMS, step_norms.h). Every bucket is measured before its result
// goes to the gradients. The ranks exchange their requests in finish, and decide together how the results go
// there.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kNorms;

// Parts of the feature.
void add_norms_exchanges(ReducerState* state);
void add_measure_work(ReducerState* state);

}  // namespace weft
