// What kernels on a device are given: the counterparts of CopyArgs and FoldArgs in core/device.h, with equal
// results. Compiled by nvcc too, and passed by value: plain structs. Addresses are the device's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// One stretch of a multi-tensor copy; a block of threads does one.
struct CopyPiece {
  const std::byte* src;
  std::byte* dst;
  uint64_t count;
};
inline constexpr uint64_t kCopyPieceElements = 16384;

// For each piece dst[i] = round(scale * src[i]), as DeviceOps::copy: a bucket's flatten, its unflatten and a
// cast are this with other pieces, in one launch whatever the number of tensors.
struct CopyPiecesArgs {
  const CopyPiece* pieces;  // in pinned or device memory, until the kernel has run
  uint32_t piece_count;
  uint8_t src_dtype;  // Dtype
  uint8_t dst_dtype;
  double scale;
};

// As DeviceOps::fold.
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

// Threads of a block, for all kernels.
inline constexpr uint32_t kKernelThreads = 256;
inline constexpr uint64_t kFoldElementsPerBlock = 4096;

}  // namespace weft
