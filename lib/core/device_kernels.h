// What kernels on a device are given, with results equal to those of DeviceOps (core/device.h): counterparts
// of its arguments, or the very same ones. Compiled by nvcc too, and passed by value: plain structs. For
// kernels addresses are the device's.
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
  // So many products of this shape in one call: matrix i lies at matrix + offsets[i] (null: at matrix), and
  // its factors and residual behind those of the one before.
  uint64_t batch = 1;
  const uint64_t* offsets = nullptr;
  float* residual = nullptr;      // kResidual's; null: in place of the matrix
  const float* addend = nullptr;  // kLeft's, of a single product; the host's alone
  bool streaming = false;  // kMatrix: what it makes is read much later, so it may leave the caches alone
};

// What DeviceOps::squares returns.
struct Squares {
  double sum = 0;
  bool finite = true;
};

// Of stretches of so many elements, each the sum of 32 partial ones; their sums are added up in 256 partial
// ones: an order in which threads can add, and equal everywhere.
inline constexpr uint64_t kSquaresStretch = 1024;
inline constexpr uint32_t kSquaresPartial = 32;
inline constexpr uint32_t kSquaresTotals = 256;
struct SquaresPart {
  double sum;
  uint32_t odd;  // values that are not finite
};
struct SquaresKernelArgs {
  const std::byte* src;
  uint64_t count;
  uint8_t dtype;       // Dtype
  SquaresPart* parts;  // in device memory, one a stretch
  Squares* result;     // in pinned or device memory
};

// Columns of `rows` values become orthonormal, as by hooks/powersgd/orthogonal.h: one after the other in f64,
// dot products as the sum of 256 partial ones.
inline constexpr uint32_t kDotPartial = 256;
struct OrthonormalArgs {
  float* columns = nullptr;  // those of a matrix, and behind them those of the next one
  uint64_t rows = 0;
  uint64_t rank = 0;
  uint64_t batch = 1;  // matrices
  double epsilon = 0;
  bool refill = false;  // what depends on others, or is zero, becomes something random; otherwise zero
  uint64_t seed = 0;
};

// The `take` largest magnitudes of `count` values (a NaN is larger than all; of equals the first), in the
// order of their places; what is left of `room` says kNoPlace. With residual: what was taken becomes 0, and
// infinities and NaNs that were not as well.
inline constexpr uint32_t kNoPlace = UINT32_MAX;
struct Selected {
  uint32_t place;
  float value;
};
struct SelectArgs {
  float* values = nullptr;
  uint64_t count = 0;  // less than kNoPlace
  uint64_t take = 0;   // at most count and room
  uint64_t room = 0;
  Selected* selected = nullptr;
  bool residual = false;
  uint32_t* scratch = nullptr;  // select_scratch(count) of them
};
inline constexpr uint32_t kSelectBins = 65536;
inline constexpr uint64_t kSelectStretch = 4096;
constexpr uint64_t select_scratch(uint64_t count) {
  return 2 * uint64_t{kSelectBins} + 8 + 2 * ((count + kSelectStretch - 1) / kSelectStretch);
}

// Threads of a block, for all kernels.
inline constexpr uint32_t kKernelThreads = 256;
inline constexpr uint64_t kFoldElementsPerBlock = 4096;
// Threads that do a block of QuantizeArgs or a stretch of squares.
inline constexpr uint32_t kKernelLanes = 32;
inline constexpr uint32_t kKernelGroups = kKernelThreads / kKernelLanes;

// LowRankArgs: a dot product is the sum of 16 partial ones, a thread each, and a block does 16 rows of the
// left factor; of the right one a thread does a column of the matrix, and of a product 16 values of one.
inline constexpr uint32_t kLowRankDots = 16;
inline constexpr uint32_t kLowRankLeftRows = kKernelThreads / kLowRankDots;
inline constexpr uint32_t kLowRankProductRows = 16;
inline uint64_t low_rank_blocks(const LowRankArgs& args) {
  const uint64_t across = (args.columns + kKernelThreads - 1) / kKernelThreads;
  if (args.product == LowRank::kLeft)
    return args.batch * ((args.rows + kLowRankLeftRows - 1) / kLowRankLeftRows);
  if (args.product == LowRank::kRight) return args.batch * across;
  return args.batch * ((args.rows + kLowRankProductRows - 1) / kLowRankProductRows) * across;
}

// A selection is launched once for each pass.
enum class SelectPass : uint8_t { kClear, kUpper, kFindUpper, kLower, kFindLower, kCount, kScan, kWrite };
constexpr int kSelectPasses = 8;
struct SelectLaunch {
  SelectArgs args;
  SelectPass pass = SelectPass::kClear;
};

// Blocks of a pass; 0: there is nothing to do in it.
inline uint64_t select_blocks(const SelectArgs& args, SelectPass pass) {
  const uint64_t stretches = (args.count + kSelectStretch - 1) / kSelectStretch;
  if (pass == SelectPass::kWrite) return stretches > 0 ? stretches : args.room > 0 ? 1 : 0;
  if (args.take == 0) return 0;
  if (pass == SelectPass::kClear) return 2 * kSelectBins / kKernelThreads;
  const bool one =
      pass == SelectPass::kFindUpper || pass == SelectPass::kFindLower || pass == SelectPass::kScan;
  return one ? 1 : stretches;
}

}  // namespace weft
