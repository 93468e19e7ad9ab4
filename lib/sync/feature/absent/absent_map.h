// The exchange that tells which parameters are absent on every rank (WEFT_REDUCER_ABSENT): a map with one bit
// for each parameter (sync/presence.h).
#pragma once

namespace weft {

struct ReducerState;

void add_absent_map(ReducerState* state);

}  // namespace weft
