// Streams of the program that wait for results in place of the host. Threads: leave_to_streams by the thread
// of finish, make_stream_wait by any thread.
#pragma once

#include "reducer/data.h"

namespace weft {

// Makes the given streams wait for the step in place of the host. All gradients are ready. False if the host
// must wait instead.
bool leave_to_streams(ReducerData& r, const weft_finish_options& options, uint64_t entered_ns);
// Makes a stream wait in place of the host for one parameter's result.
Status make_stream_wait(ReducerData& r, uint64_t param, int device, DeviceStream stream);

}  // namespace weft
