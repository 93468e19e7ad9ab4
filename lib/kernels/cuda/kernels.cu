// The kernels, by the names under which backends/cuda finds them. Compiled to a fat binary that
// libweft-cuda.so carries; `nvcc -fmad=false`, since equal bits need no contraction.
#include "kernels/cuda/copy.h"
#include "kernels/cuda/fold.h"

namespace {

__device__ __forceinline__ weft::cuda::Place here() {
  return {blockIdx.x, threadIdx.x, blockDim.x};
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(weft::kKernelThreads) weft_copy_pieces(weft::CopyPiecesArgs args) {
  weft::cuda::copy_pieces(here(), args);
}

__global__ void __launch_bounds__(weft::kKernelThreads)
    weft_fold(const __grid_constant__ weft::FoldKernelArgs args) {
  weft::cuda::fold(here(), args);
}

}  // extern "C"
