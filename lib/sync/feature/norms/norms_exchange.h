// The exchanges of a reducer with norms (WEFT_REDUCER_NORMS, sync/norms.h): the sum of the ranks' norms if it
// is sharded, and the ranks' requests in finish, from which they decide together.
#pragma once

namespace weft {

struct ReducerState;

void add_norms(ReducerState* state);

}  // namespace weft
