// Copies the contributions of a bucket before they are communicated, so that a failed step can be tried again
// (WEFT_REDUCER_RETAIN).
#pragma once

namespace weft {

struct ReducerState;

void add_retain_work(ReducerState* state);

}  // namespace weft
