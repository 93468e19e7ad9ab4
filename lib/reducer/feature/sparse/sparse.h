// Sparse gradients (WEFT_PARAM_SPARSE, sparse_gradient.h): plans their exchange, takes their entries, sums
// them, and scales their results.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kSparse;

// Parts of the feature.
void add_sparse_copies(ReducerState* state);
void add_scale_work(ReducerState* state);
void add_sparse_stages(ReducerState* state);
PlanBucket sparse_planner(const PlannedBucket& bucket);

}  // namespace weft
