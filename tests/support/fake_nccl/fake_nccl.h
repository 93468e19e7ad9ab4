// NCCL without a GPU, over the streams of the fake CUDA (../fake_cuda): loaded in place of the real one.
// Communicators of ranks that are threads of one process meet by their identifier; what is put on a stream
// runs when the stream comes to it, meets the other ranks' there, and waits for them until it is aborted.
// Communicators that do not block finish their calls later, on threads, and mind being called meanwhile. Here
// is what tests tell it and ask it besides NCCL's own calls. Threads: any thread.
#pragma once

#include <cstdint>

extern "C" {

// The seed of delays, and the longest of them. Nothing is live.
void fake_nccl_setup(uint64_t seed, int delay_us);
// What was done wrong since, one a line; "" if nothing. Valid until the next call.
const char* fake_nccl_problems();
// Communicators and operations that were not destroyed, one a line.
const char* fake_nccl_live();
// How many calls of this name ("ncclAllReduce") were made since.
uint64_t fake_nccl_calls(const char* call);
// What the next call of this name returns in place of doing anything; 0: takes it back.
void fake_nccl_fail(const char* call, int result);
// What ncclCommGetAsyncError says of all communicators' ranks of that number from now on.
void fake_nccl_break(int rank, int result);
// The name of the thread that called ncclCommAbort last; "" if none has since. Valid until the next call.
const char* fake_nccl_aborted_on();
// What ncclGetVersion says; 0: the usual.
void fake_nccl_version(int version);
}
