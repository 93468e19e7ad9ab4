// Begins steps. Threads: one thread at a time, as finish.
#pragma once

#include "reducer/data.h"

namespace weft {

// Takes the next stamp for a step.
uint32_t next_stamp(ReducerData& r);
// Opens a synchronised step with the current stamp. full: all gradients are in their buckets already.
void open_step(ReducerData& r, const StepStart& start, bool full);
// options: null for the defaults.
Status begin_step(ReducerData& r, const weft_begin_options* options);
// Begins a step without data. start: as for a step with data. Accumulated gradients count as data. Step
// writes the zeros once the step is known to take place, so that until then results of the last step stay
// untouched. joined: this rank has no more data.
Status begin_without_data(ReducerData& r, StepStart start, bool joined);

}  // namespace weft
