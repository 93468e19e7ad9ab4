// Ranks that have run out of data. Threads: one thread at a time, as begin and finish.
#pragma once

#include "reducer/data.h"

namespace weft {

Status join_steps(ReducerData& r, const weft_join_options& options, weft_join_result* result);

}  // namespace weft
