// The calls of sharded reducers: which slices a rank owns, and when Gather runs. Threads: one thread at a
// time, as begin and finish, except where a comment says otherwise.
#pragma once

#include "reducer/data.h"

namespace weft {

Status gather_params(ReducerData& r, const weft_gather_options& options, const Status& given);
// Starts a gather. wish: the error of this rank's call; the other ranks receive it. announce: ranks that have
// joined wait for the handshake of a step.
void start_gather(ReducerData& r, int64_t timeout_ms, const Status& wish, bool announce);
// Any thread. Starts the gather after a sharded step, at the first request for a value; the same on all
// ranks.
void start_owed_gather(ReducerData& r);
// Drops an owed gather that no request has started, and waits for one that was started. Called before the
// next step: later requests for a value are for that step's result.
Status end_owed_gather(ReducerData& r);
// Waits for a gather that was started, and returns its result once. The same on all ranks, so that a call
// rejected because of it is rejected on all ranks.
Status settle_gather(ReducerData& r);
// Waits for a gather before the reducer is destroyed, because the other ranks count on this one. False if the
// gather does not end.
bool end_gather(ReducerData& r);
// Any thread. Waits until a parameter's value is here, during a gather or after it.
Status wait_value(ReducerData& r, const Parts& at, uint64_t param, int64_t timeout_ms);
// slices: null to ask for their number.
Status read_owned(ReducerData& r, int32_t rank, weft_slice* slices, uint64_t* count);

}  // namespace weft
