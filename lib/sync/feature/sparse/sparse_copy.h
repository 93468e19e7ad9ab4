// Takes the entries of sparse gradients.
#pragma once

namespace weft {

struct ReducerState;

void add_sparse_copies(ReducerState* state);

}  // namespace weft
