// Copies gradients on devices into their bucket once the program's streams have produced them.
#pragma once

namespace weft {

struct ReducerState;

void add_fetch_work(ReducerState* state);

}  // namespace weft
