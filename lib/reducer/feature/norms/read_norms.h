// Returns the norms of the last step. Threads: one thread at a time, as begin and finish.
#pragma once

#include "reducer/data.h"

namespace weft {

Status read_norms(ReducerData& r, weft_norms* norms, double* per_param);

}  // namespace weft
