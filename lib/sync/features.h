// The features of a step that have exchanges of their own. Each lies in a folder of lib/sync/feature, and has
// a line in features.cpp.
#pragma once

namespace weft {

struct ReducerState;

// Adds the exchanges of all features to a schedule that has the buckets' collectives. The order is the same
// on all ranks.
void add_exchanges(ReducerState* state);
// Gives each parameter of a complete state its copies, and each bucket its works.
void add_copies_and_works(ReducerState* state);

}  // namespace weft
