// Dense gradients: from the program's ready call into their buckets. Threads: any thread. Nothing here polls
// the engine, not even in caller mode. A lock is taken only while the uses of parameters are being learned.
#pragma once

#include "reducer/data.h"

namespace weft {

// layout: of the gradient; null: the parameter's.
Status make_ready(ReducerData& r, uint64_t param, void* gradient, const Layout* layout,
                  const weft_stream* stream);
// Copies a gradient that is complete and claimed.
Status take_gradient(ReducerData& r, uint64_t param, const Given& given, StepWord step);
// Copies it into its bucket. May throw std::bad_alloc.
void copy_gradient(ReducerData& r, uint64_t param, const Given& given, StepWord step);
// Counts a gradient that is in its bucket. After the count the step may be over and the reducer bound anew.
// The function then uses only objects that are carried over.
void count_gradient(ReducerData& r, uint64_t param);
// Makes the error of a refused ready call.
Status ready_refused(const ReducerState& s, uint64_t param, StepWord step);

}  // namespace weft
