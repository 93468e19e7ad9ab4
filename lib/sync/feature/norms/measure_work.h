// Measures the result of each bucket of a reducer with norms (WEFT_REDUCER_NORMS, sync/norms.h), before it
// goes to the gradients, and decides how the results go there from the requests of all ranks.
#pragma once

namespace weft {

struct ReducerState;

void add_measure_work(ReducerState* state);

}  // namespace weft
