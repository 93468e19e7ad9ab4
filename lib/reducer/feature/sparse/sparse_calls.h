// Sparse gradients: takes their entries from the program, and returns results to it. Threads:
// make_sparse_ready by any thread, read_sparse_result as begin and finish.
#pragma once

#include "reducer/data.h"

namespace weft {

Status make_sparse_ready(ReducerData& r, uint64_t param, const weft_sparse& entries,
                         const weft_stream* stream);
Status read_sparse_result(ReducerData& r, uint64_t param, weft_sparse* result);

}  // namespace weft
