// NCCL without a GPU, over the streams of the fake CUDA (../fake_cuda), loaded in place of the real one. A
// communicator's ranks are threads of one process that find each other by the unique identifier. An operation
// runs when its stream reaches it. There it waits for the other ranks' operations, until it is aborted.
// Non-blocking communicators finish their calls later, on threads, and report calls that come meanwhile. This
// header declares the controls that tests use besides NCCL's own calls. Threads: any thread.
#pragma once

#include <cstdint>

extern "C" {

// Resets the fake. Sets the seed of delays and the longest delay.
void fake_nccl_setup(uint64_t seed, int delay_us);
// Returns the misuses since the setup, one a line; "" if there are none. Valid until the next call.
const char* fake_nccl_problems();
// Returns the communicators and operations that were not destroyed, one a line.
const char* fake_nccl_live();
// Returns the number of calls of this name ("ncclAllReduce") since the setup.
uint64_t fake_nccl_calls(const char* call);
// Makes the next call of this name return the result without doing anything. 0 cancels it.
void fake_nccl_fail(const char* call, int result);
// Makes ncclCommGetAsyncError return the result for this rank number of every communicator from now on.
void fake_nccl_break(int rank, int result);
// Returns the name of the thread that called ncclCommAbort last; "" if none has since the setup. Valid until
// the next call.
const char* fake_nccl_aborted_on();
// Sets the version that ncclGetVersion reports. 0: the default.
void fake_nccl_version(int version);
}
