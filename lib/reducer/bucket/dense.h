// Dense gradients in host memory: every reducer copies them into their bucket, and the result back.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kDense;

// Parts of the feature.
void add_dense_copies(ReducerState* state);
void add_return_work(ReducerState* state);

}  // namespace weft
