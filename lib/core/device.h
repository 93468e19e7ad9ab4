// The operations on memory that backends, hooks and the reducer are written with: one table a device kind, a
// host one (lib/kernels) and a CUDA one beside it. Host operations run on the calling thread and have
// completed on return.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "core/device_kernels.h"

namespace weft {

// Memory of so many bytes is more than caches keep until its next use.
inline constexpr uint64_t kStreamingBytes = uint64_t{8} << 20;

// outputs[*][i] = round(postscale * fold over inputs, in order, of prescale * inputs[k][i]).
// 16-bit and 32-bit floats are accumulated in f32, f64 in f64, integers in their own type, wrapping; every
// output gets the same bits. Outputs may be one of the inputs exactly, and may overlap nothing else. Scales
// are applied to floats and only if they are not 1. Sum has the same result whatever the vector width: no
// reassociation across inputs, no fused multiply-add.
struct FoldArgs {
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;  // avg and premul_sum fold as sum: the scales carry the rest
  const std::byte* const* inputs = nullptr;
  int input_count = 0;  // at least 1
  std::byte* const* outputs = nullptr;
  int output_count = 0;  // at least 1
  uint64_t count = 0;    // elements
  double prescale = 1.0;
  double postscale = 1.0;
  bool streaming = false;  // outputs are read much later: a sum of floats may leave the caches alone
};

// dst[i] = round(scale * src[i]), converting between float types; equal integer types are copied. Disjoint or
// identical.
struct CopyArgs {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  uint64_t count = 0;
  Dtype src_dtype = Dtype::kF32;
  Dtype dst_dtype = Dtype::kF32;
  double scale = 1.0;
  bool streaming = false;  // dst is read much later: a plain copy may leave the caches alone
};

// The sum of squares of floats, added up in f64: equal on every instruction set, and a function of the values
// and their count alone. finite: none is an infinity or a NaN; the sum may be infinite all the same.
struct SquaresArgs {
  const std::byte* src = nullptr;
  uint64_t count = 0;
  Dtype dtype = Dtype::kF32;
};

struct DeviceOps {
  const char* name;  // "host", with the instruction set: for info
  void (*fold)(const FoldArgs& args);
  void (*copy)(const CopyArgs& args);
  // accumulator[i] += src[i]: equal types, or f16, bf16 and f32 in any combination, added in f32 and rounded
  // to the accumulator's.
  void (*accumulate)(const CopyArgs& args);
  void (*quantize)(const QuantizeArgs& args);
  void (*dequantize)(const DequantizeArgs& args);
  void (*low_rank)(const LowRankArgs& args);
  Squares (*squares)(const SquaresArgs& args);
  void (*select)(const SelectArgs& args);  // the largest
};

}  // namespace weft
