// A CUDA runtime without a GPU, loaded in place of the real one: streams are threads that run what they are
// given later, with seeded delays; copies are really asynchronous; events and waits hold what they should and
// nothing else; arguments are checked as the real one does. Device memory cannot be touched by the host: it
// crashes. Here is what tests tell it and ask it besides CUDA's own calls. Threads: any thread.
#pragma once

#include <cstdint>

extern "C" {

// Devices, the seed of delays, and the longest delay before and in the middle of an operation. Nothing is
// live.
void fake_cuda_setup(int devices, uint64_t seed, int delay_us);
// What was done wrong since, one a line; "" if nothing. Valid until the next call.
const char* fake_cuda_problems();
// Allocations, registrations, streams and events that were not freed, one a line.
const char* fake_cuda_live();
// Copies and other operations that have run.
uint64_t fake_cuda_operations();
// The process uses the device: since the setup somebody has set it, or asked for its context.
bool fake_cuda_has_context(int device);
// What the next call of this name returns in place of doing anything ("cudaMemcpyAsync"); 0: takes it back.
void fake_cuda_fail(const char* call, int error);
// The calling thread's next call of this name takes so long.
void fake_cuda_slow(const char* call, int delay_us);
// Launches of this kernel do not begin, once so many more have come, until the next call; "": none stalls.
void fake_cuda_stall(const char* kernel, int after);
// What the calls about versions say; 0: the usual; -1: that there is none.
void fake_cuda_versions(int runtime, int driver);
}
