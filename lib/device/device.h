// The operations on memory that backends, hooks and the reducer use: one table, of the host
// (lib/kernels). Operations run on the calling thread and have completed on return.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "device/device_kernels.h"

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

// Codes in which hooks write f32 values as a byte or a bit each: value = scale * code, with one scale per
// block.
enum class BlockCode : uint8_t {
  kInt8,  // -127 to 127
  kE4m3,  // fp8 with 4 exponent and 3 mantissa bits, no infinities, up to 448
  kE5m2,  // fp8 with 5 exponent and 2 mantissa bits, up to 57344
  kSign,  // one bit, set for negative values; the scale is the mean magnitude
};

// Encodes values, or the sums of values and addends. A block that has an infinity or a NaN gets the scale
// NaN, so all its decoded values are NaN. A block in which every magnitude is below 1e-30 gets scale 0. Equal
// on every instruction set.
struct QuantizeArgs {
  BlockCode code = BlockCode::kInt8;
  uint32_t block = 256;  // values per scale, a multiple of 16
  // With residual: replaced by the quantization error, value - scale * code, and by 0 in blocks whose scale
  // is NaN.
  float* values = nullptr;
  float* scales = nullptr;     // one per block; the last block may be shorter
  std::byte* codes = nullptr;  // one byte per value; kSign: one bit, the lowest first
  uint64_t count = 0;
  const float* addend = nullptr;  // added to the values first; needs residual
  bool residual = false;
  // Gets error_scale times the residual added; null: nothing. Needs residual.
  float* error = nullptr;
  float error_scale = 1;
  bool stochastic = false;  // round up with the probability of the remainder; no effect for kSign
  uint32_t seed = 0;        // seed of the stochastic rounding
};

// values[i] = postscale * the sum of scale * code over the inputs, added in their order.
struct DequantizeArgs {
  BlockCode code = BlockCode::kInt8;
  uint32_t block = 256;
  const float* scales = nullptr;  // of the first input
  const std::byte* codes = nullptr;
  uint64_t inputs = 1;
  uint64_t stride_bytes = 0;  // from an input's scales and codes to those of the next one; a multiple of 4
  float* values = nullptr;
  uint64_t count = 0;
  float postscale = 1;
};

// Products of a matrix (rows x columns, row-major) and two thin factors. left is rows x rank, right is
// columns x rank; both are stored column by column. Equal on every instruction set.
enum class LowRank : uint8_t {
  kLeft,      // matrix += addend, if there is one; left = matrix * right
  kRight,     // right = transposed matrix * left
  kMatrix,    // matrix = left * transposed right
  kResidual,  // residual = matrix - left * transposed right, and 0 where that is not finite
};
struct LowRankArgs {
  LowRank product = LowRank::kLeft;
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t rank = 0;
  float* matrix = nullptr;
  float* left = nullptr;
  float* right = nullptr;
  // Number of products of this shape in one call. Matrix i is at matrix + offsets[i] (null: at matrix). Its
  // factors and residual follow those of the previous product.
  uint64_t batch = 1;
  const uint64_t* offsets = nullptr;
  float* residual = nullptr;      // for kResidual; null: overwrites the matrix
  const float* addend = nullptr;  // for kLeft, of a single product
  bool streaming = false;         // kMatrix: the matrix is read much later, so writes may bypass the caches
};

// Selects the `take` largest magnitudes of `count` values, in the order of their positions. A NaN is larger
// than all other values; of equal magnitudes the first is selected. Unused entries up to `room` get kNoPlace.
// With residual: selected values become 0, as do infinities and NaNs that were not selected.
inline constexpr uint32_t kNoPlace = UINT32_MAX;
struct Selected {
  uint32_t place;
  float value;
};
struct SelectArgs {
  float* values = nullptr;
  uint64_t count = 0;  // less than kNoPlace
  uint64_t take = 0;   // at most min(count, room)
  uint64_t room = 0;
  Selected* selected = nullptr;
  bool residual = false;
  uint32_t* scratch = nullptr;  // hook/select_scratch.h says how many entries
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
