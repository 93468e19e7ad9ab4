// Scales the result of a sparse gradient, which stays where it is, by the factor of the step's results.
#pragma once

namespace weft {

struct ReducerState;

void add_scale_work(ReducerState* state);

}  // namespace weft
