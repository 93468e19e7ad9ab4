// Tries a failed step again with the contributions that were retained. Threads: one thread at a time, as
// begin and finish.
#pragma once

#include "reducer/data.h"

namespace weft {

Status retry_step(ReducerData& r, const weft_finish_options& options);

}  // namespace weft
