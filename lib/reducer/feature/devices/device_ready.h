// Gradients in device memory, from the program's ready call to their buckets. Threads: any thread, except
// where a comment says otherwise.
#pragma once

#include "reducer/data.h"

namespace weft {

// Detects that the program uses devices; gradients declared as host memory are then checked. Called before
// the step is open.
void notice_devices(ReducerState& s);
// Checks that the memory of a parameter's gradient is where the manifest declares it.
Status check_gradient_memory(const ReducerState& s, uint64_t param, const void* gradient);
// Checks that the stream is one of the gradient's device.
Status check_gradient_stream(const ReducerState& s, uint64_t param, const weft_stream* stream);
// Sets *gradient to the gradient's address, and checks it.
Status find_gradient(const ReducerState& s, uint64_t param, void** gradient);
// Checks a ready call for a gradient on a device, sets *gradient to its address, and notes its stream.
Status come_from_device(ReducerState& s, uint64_t param, void** gradient, const weft_stream* stream,
                        StepWord step);
// Records events on the bucket's streams after its last gradient: the copy waits for them. The step launches
// the bucket only once they are recorded, so it cannot end earlier unless it fails. The shared pointer keeps
// the state until then.
void arrive_on_device(const std::shared_ptr<ReducerState>& shared, uint32_t bucket);
// Fails the communicator if status is an error.
void fail_device(ReducerState& s, const Status& status, uint64_t param);
// Waits until devices have added the gradients of local steps to the buckets. Called before the buckets move.
Status await_devices(ReducerState& s, Deadline deadline);
// Copies one result to a gradient in device memory after a step, and waits.
Status result_on_device(ReducerData& r, uint64_t param, void* gradient);

}  // namespace weft
