// A block of threads whose kernels share memory. The threads go through phases: values written in one phase
// can be read in the next one. On the host (tests/support/fake_cuda) a phase is a loop over the threads. So a
// body's variables may only hold values that are equal in all threads; the rest is in shared memory.
#pragma once

#include "kernels/cuda/elements.h"

namespace weft::cuda {

struct Block {
  uint64_t index;
  uint32_t threads;  // kKernelThreads

#ifdef __CUDACC__
  template <class Phase>
  WEFT_KERNEL_CODE void each(Phase&& phase) const {
    phase(threadIdx.x);
    __syncthreads();
  }
  // Reads a value from shared memory for all threads. The next phase may overwrite it.
  template <class T>
  WEFT_KERNEL_CODE T read(const T& shared) const {
    const T value = shared;
    __syncthreads();
    return value;
  }
#else
  template <class Phase>
  void each(Phase&& phase) const {
    for (uint32_t thread = 0; thread < threads; thread++) phase(thread);
  }
  template <class T>
  T read(const T& shared) const {
    return shared;
  }
#endif
};

// Adds up each `width` consecutive values (a power of two), halves onto halves, into the first of them.
template <class T>
WEFT_KERNEL_CODE void add_halves(const Block& block, T* shared, uint32_t width) {
  for (uint32_t half = width / 2; half > 0; half /= 2) {
    block.each([&](uint32_t t) {
      if (t % width < half) shared[t] += shared[t + half];
    });
  }
}

}  // namespace weft::cuda
