// Results of steps, and what is known of parameters and buckets. Threads: one thread at a time, as begin and
// finish, except where a comment says otherwise.
#pragma once

#include "reducer/data.h"

namespace weft {

// Any thread.
Status read_grad_view(ReducerData& r, uint64_t param, void** view);
// Waits until the result of one parameter is in its gradient, or its value was gathered. Any thread.
Status wait_for_param(ReducerData& r, uint64_t param, int64_t timeout_ms);
Status read_result(ReducerData& r, uint64_t param, void* gradient);
// Checks that the last step has a result for the parameter.
Status check_result(const ReducerData& r, uint64_t param);
Status read_param(const ReducerData& r, uint64_t param, weft_param_info* info);
Status read_bucket(ReducerData& r, uint32_t bucket, weft_bucket_info* info, uint64_t* params,
                   uint64_t capacity);
// Returns a bucket's times. While the step runs, even if finish has given it up, only done_ns is set.
Step::Times times_of(const ReducerData& r, uint32_t bucket);
// Returns the bytes that the last step reduced.
uint64_t reduced_bytes(const ReducerState& s, uint32_t bucket);

}  // namespace weft
