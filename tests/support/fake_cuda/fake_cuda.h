// A CUDA runtime without a GPU, loaded in place of the real one. Streams are threads that run their
// operations later, after seeded delays. Copies are truly asynchronous. Events and waits order exactly what
// CUDA orders. Arguments are checked as by the real runtime. The host cannot access device memory: an access
// crashes. This header declares the controls that tests use besides CUDA's own calls. Threads: any thread.
#pragma once

#include <cstdint>

extern "C" {

// Resets the fake. Sets the number of devices, the seed of delays, and the longest delay before and in the
// middle of an operation.
void fake_cuda_setup(int devices, uint64_t seed, int delay_us);
// Returns the misuses since the setup, one a line; "" if there are none. Valid until the next call.
const char* fake_cuda_problems();
// Returns the allocations, registrations, streams and events that were not freed, one a line.
const char* fake_cuda_live();
// Returns the number of copies and other operations that have run.
uint64_t fake_cuda_operations();
// Returns true if the process uses the device: since the setup it has set the device or asked for its
// context.
bool fake_cuda_has_context(int device);
// Makes the next call of this name ("cudaMemcpyAsync") return the error without doing anything. 0 cancels it.
void fake_cuda_fail(const char* call, int error);
// Delays the calling thread's next call of this name by delay_us.
void fake_cuda_slow(const char* call, int delay_us);
// Stalls launches of this kernel, after the next `after` ones, until fake_cuda_stall is called again. "": no
// kernel stalls.
void fake_cuda_stall(const char* kernel, int after);
// Sets whether cuModuleGetLoadingMode reports that kernels are loaded lazily; after the setup they are not.
void fake_cuda_load_lazily(int lazy);
// Sets the versions that the version calls report. 0: the defaults; -1: none.
void fake_cuda_versions(int runtime, int driver);
}
