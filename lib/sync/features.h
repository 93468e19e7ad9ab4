// The features of a step that have exchanges of their own. Each lies in a folder of lib/sync/feature, and has
// a line in features.cpp.
#pragma once

namespace weft {

struct ReducerState;

// Adds the exchanges of all features to a schedule that has the buckets' collectives. The order is the same
// on all ranks.
void add_exchanges(ReducerState* state);
// Gives each bucket of a complete state the works that prepare it.
void add_works(ReducerState* state);

}  // namespace weft
