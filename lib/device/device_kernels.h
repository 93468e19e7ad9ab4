// Arguments of the kernels on a device, whose results equal those of DeviceOps (device/device.h). They mirror
// its arguments or are the same structs. nvcc compiles this file too, and kernels take the structs by value,
// so they are plain structs. Addresses in kernel arguments are device addresses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// One range of a multi-tensor copy; one thread block copies it. Larger ranges leave multiprocessors idle at a
// bucket's end; smaller ones read more of the table, which is in pinned memory (docs/dev/gpu-results.md).
struct CopyPiece {
  const std::byte* src;
  std::byte* dst;
  uint64_t count;
};
inline constexpr uint64_t kCopyPieceElements = 8192;

// For each piece, dst[i] = round(scale * src[i]), as DeviceOps::copy. Flattening a bucket, unflattening it
// and casting differ only in the pieces. One launch handles any number of tensors.
struct CopyPiecesArgs {
  const CopyPiece* pieces;  // in pinned or device memory, valid until the kernel has run
  uint32_t piece_count;
  uint8_t src_dtype;  // Dtype
  uint8_t dst_dtype;
  double scale;
};

// Arguments of the kernel that computes what DeviceOps::fold computes.
struct FoldKernelArgs {
  static constexpr int kMost = 64;
  const std::byte* inputs[kMost];
  std::byte* outputs[kMost];
  int32_t input_count;
  int32_t output_count;
  uint8_t dtype;  // Dtype
  uint8_t op;     // ReduceOp
  uint64_t count;
  double prescale;
  double postscale;
};

// The result of DeviceOps::squares.
struct Squares {
  double sum = 0;
  bool finite = true;
};

// The summation order of squares. Each range of kSquaresRange elements is the sum of kSquaresPartial
// partial sums; the ranges are added up in kSquaresTotals partial sums. Threads can add in this order, and
// results are equal everywhere.
inline constexpr uint64_t kSquaresRange = 1024;
inline constexpr uint32_t kSquaresPartial = 32;
inline constexpr uint32_t kSquaresTotals = 256;
struct SquaresPart {
  double sum;
  uint32_t odd;  // number of values that are not finite
};
struct SquaresKernelArgs {
  const std::byte* src;
  uint64_t count;
  uint8_t dtype;       // Dtype
  SquaresPart* parts;  // in device memory, one per range
  Squares* result;     // in pinned or device memory
};

// Threads per block, for all kernels.
inline constexpr uint32_t kKernelThreads = 256;
inline constexpr uint64_t kFoldElementsPerBlock = 4096;
// Number of threads that together sum the squares of one range of values (SquaresKernelArgs).
inline constexpr uint32_t kKernelLanes = 32;
inline constexpr uint32_t kKernelGroups = kKernelThreads / kKernelLanes;

}  // namespace weft
