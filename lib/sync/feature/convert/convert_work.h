// Converts the contributions of a bucket to the communication dtype, and multiplies those that their copy has
// not multiplied by the rank's weight.
#pragma once

namespace weft {

struct ReducerState;

void add_convert_work(ReducerState* state);

}  // namespace weft
