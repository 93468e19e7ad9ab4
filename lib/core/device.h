// The operations on memory that backends, hooks and the reducer are written with: one table a device kind, a
// host one (lib/kernels) and a CUDA one beside it. Host operations run on the calling thread and have
// completed on return.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace weft {

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
};

// How hooks write f32 values in a byte or a bit each: value = scale * code, one scale for every block.
enum class BlockCode : uint8_t {
  kInt8,  // -127 to 127
  kE4m3,  // fp8 with 4 and 3 bits, no infinities, up to 448
  kE5m2,  // fp8 with 5 and 2 bits, up to 57344
  kSign,  // one bit, set for negative ones; the scale is the mean of magnitudes
};

// The scale of a block that has an infinity or a NaN is NaN, and so is all that is decoded of it; a block of
// nothing but numbers below 1e-30 has scale 0. Equal on every instruction set.
struct QuantizeArgs {
  BlockCode code = BlockCode::kInt8;
  uint32_t block = 256;  // values of a scale, a multiple of 16
  // With residual: become what is lost, value - scale * code, and 0 in blocks whose scale is NaN.
  float* values = nullptr;
  float* scales = nullptr;     // one for each block, the last of which may be shorter
  std::byte* codes = nullptr;  // a byte for each value; kSign: a bit, the lowest first
  uint64_t count = 0;
  bool residual = false;
  bool stochastic = false;  // round up with the probability of what is left over; kSign: no difference
  uint32_t seed = 0;        // of that
};

// values[i] = scale * code, or values[i] + that.
struct DequantizeArgs {
  BlockCode code = BlockCode::kInt8;
  uint32_t block = 256;
  const float* scales = nullptr;
  const std::byte* codes = nullptr;
  float* values = nullptr;
  uint64_t count = 0;
  bool add = false;
};

// Products of a matrix (rows x columns, row-major) and two thin factors: left is rows x rank, right columns x
// rank, both stored one column after the other. Equal on every instruction set.
enum class LowRank : uint8_t {
  kLeft,      // left = matrix * right
  kRight,     // right = transposed matrix * left
  kMatrix,    // matrix = left * transposed right
  kResidual,  // matrix -= left * transposed right
};
struct LowRankArgs {
  LowRank product = LowRank::kLeft;
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t rank = 0;
  float* matrix = nullptr;
  float* left = nullptr;
  float* right = nullptr;
  // So many products of this shape in one call: matrix i lies at matrix + offsets[i] (null: at matrix), and
  // its factors behind those of the one before.
  uint64_t batch = 1;
  const uint64_t* offsets = nullptr;
};

// The sum of squares of floats, added up in f64: equal on every instruction set, and a function of the values
// and their count alone. finite: none is an infinity or a NaN; the sum may be infinite all the same.
struct SquaresArgs {
  const std::byte* src = nullptr;
  uint64_t count = 0;
  Dtype dtype = Dtype::kF32;
};
struct Squares {
  double sum = 0;
  bool finite = true;
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
};

}  // namespace weft
