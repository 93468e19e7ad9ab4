// The operations on memory that backends, hooks and the reducer use: one table per device kind, a host one
// (lib/kernels) and a CUDA one. Host operations run on the calling thread and have completed on return.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "core/device_kernels.h"

namespace weft {

// Buffers of at least this size are too large for caches to hold until their next use.
inline constexpr uint64_t kStreamingBytes = uint64_t{8} << 20;

// Reduction: outputs[*][i] = round(postscale * fold over inputs, in order, of prescale * inputs[k][i]).
// 16-bit and 32-bit floats are accumulated in f32, f64 in f64, integers in their own type with wrap-around.
// Every output gets the same bits. An output may be exactly one of the inputs; it must not overlap anything
// else. Scales are applied to floats only, and only if they differ from 1. A sum does not depend on the
// vector width: no reassociation across inputs, and no fused multiply-add.
struct FoldArgs {
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;  // avg and premul_sum fold as sum: the scales do the rest
  const std::byte* const* inputs = nullptr;
  int input_count = 0;  // at least 1
  std::byte* const* outputs = nullptr;
  int output_count = 0;  // at least 1
  uint64_t count = 0;    // elements
  double prescale = 1.0;
  double postscale = 1.0;
  bool streaming = false;  // outputs are read much later: a sum of floats may bypass the caches
};

// Copy: dst[i] = round(scale * src[i]), converting between float types; equal integer types are copied. src
// and dst are disjoint or identical.
struct CopyArgs {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  uint64_t count = 0;
  Dtype src_dtype = Dtype::kF32;
  Dtype dst_dtype = Dtype::kF32;
  double scale = 1.0;
  bool streaming = false;  // dst is read much later: a plain copy may bypass the caches
};

// Sum of the squares of floats, accumulated in f64: equal on every instruction set, and a function of the
// values and their count alone. Squares::finite is true if no value is an infinity or a NaN; the sum may
// still be infinite.
struct SquaresArgs {
  const std::byte* src = nullptr;
  uint64_t count = 0;
  Dtype dtype = Dtype::kF32;
};

struct DeviceOps {
  const char* name;  // "host", with the instruction set: shown by weft info
  void (*fold)(const FoldArgs& args);
  void (*copy)(const CopyArgs& args);
  // accumulator[i] += src[i]: equal types, or any combination of f16, bf16 and f32, added in f32 and rounded
  // to the accumulator's type.
  void (*accumulate)(const CopyArgs& args);
  void (*quantize)(const QuantizeArgs& args);
  void (*dequantize)(const DequantizeArgs& args);
  void (*low_rank)(const LowRankArgs& args);
  Squares (*squares)(const SquaresArgs& args);
  void (*select)(const SelectArgs& args);  // selects the largest magnitudes
};

}  // namespace weft
