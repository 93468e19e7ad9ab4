// Defines the kernels under the names by which backends/cuda finds them. Compiled to a fat binary that
// libweft-cuda.so contains, with `nvcc -fmad=false`, because contraction would change bits.
#include "kernels/cuda/copy.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/squares.h"

namespace {

__device__ __forceinline__ weft::cuda::Place here() {
  return {blockIdx.x, threadIdx.x, blockDim.x};
}
__device__ __forceinline__ weft::cuda::Block block() {
  return {blockIdx.x, blockDim.x};
}

}  // namespace

#define WEFT_KERNEL __global__ void __launch_bounds__(weft::kKernelThreads)

extern "C" {

WEFT_KERNEL weft_copy_pieces(weft::CopyPiecesArgs args) {
  weft::cuda::copy_pieces(here(), args);
}

WEFT_KERNEL weft_accumulate_pieces(weft::CopyPiecesArgs args) {
  weft::cuda::accumulate_pieces(here(), args);
}

WEFT_KERNEL weft_fold(const __grid_constant__ weft::FoldKernelArgs args) {
  weft::cuda::fold(here(), args);
}

WEFT_KERNEL weft_squares(weft::SquaresKernelArgs args) {
  __shared__ weft::cuda::SquaresShared shared;
  weft::cuda::squares(block(), shared, args);
}

WEFT_KERNEL weft_squares_total(weft::SquaresKernelArgs args) {
  __shared__ weft::cuda::SquaresShared shared;
  weft::cuda::squares_total(block(), shared, args);
}

}  // extern "C"
