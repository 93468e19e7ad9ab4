// Counts the absent parameters of a bucket, and clears their places. A bucket whose parameters are all absent
// on every rank is not communicated.
#pragma once

namespace weft {

struct ReducerState;

void add_absent_work(ReducerState* state);

}  // namespace weft
