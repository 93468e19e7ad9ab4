// Defines the kernels under the names by which backends/cuda finds them. Compiled to a fat binary that
// libweft-cuda.so contains, with `nvcc -fmad=false`, because contraction would change bits.
#include "kernels/cuda/copy.h"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/low_rank.h"
#include "kernels/cuda/orthonormal.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/select.h"
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

WEFT_KERNEL weft_quantize(weft::QuantizeArgs args) {
  __shared__ weft::cuda::QuantizeShared shared;
  weft::cuda::quantize(block(), shared, args);
}

WEFT_KERNEL weft_dequantize(weft::DequantizeArgs args) {
  weft::cuda::dequantize(block(), args);
}

WEFT_KERNEL weft_squares(weft::SquaresKernelArgs args) {
  __shared__ weft::cuda::SquaresShared shared;
  weft::cuda::squares(block(), shared, args);
}

WEFT_KERNEL weft_squares_total(weft::SquaresKernelArgs args) {
  __shared__ weft::cuda::SquaresShared shared;
  weft::cuda::squares_total(block(), shared, args);
}

WEFT_KERNEL weft_low_rank(weft::LowRankArgs args) {
  __shared__ weft::cuda::LeftShared shared;
  weft::cuda::low_rank(block(), shared, args);
}

WEFT_KERNEL weft_orthonormalize(weft::OrthonormalArgs args) {
  __shared__ weft::cuda::OrthonormalShared shared;
  weft::cuda::orthonormalize(block(), shared, args);
}

WEFT_KERNEL weft_select(weft::SelectLaunch launch) {
  __shared__ weft::cuda::SelectShared shared;
  weft::cuda::select(block(), shared, launch.args, launch.pass);
}

}  // extern "C"
