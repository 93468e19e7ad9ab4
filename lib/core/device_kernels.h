// Arguments of the kernels on a device, whose results equal those of DeviceOps (core/device.h). They mirror
// its arguments or are the same structs. nvcc compiles this file too, and kernels take the structs by value,
// so they are plain structs. Addresses in kernel arguments are device addresses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// One range of a multi-tensor copy; one thread block copies it. Larger ranges leave multiprocessors idle at a
// bucket's end; smaller ones read more of the table, which is in pinned memory (docs/gpu-results.md).
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

// Codes in which hooks write f32 values as a byte or a bit each: value = scale * code, with one scale per
// block.
enum class BlockCode : uint8_t {
  kInt8,  // -127 to 127
  kE4m3,  // fp8 with 4 exponent and 3 mantissa bits, no infinities, up to 448
  kE5m2,  // fp8 with 5 exponent and 2 mantissa bits, up to 57344
  kSign,  // one bit, set for negative values; the scale is the mean magnitude
};

// A block that has an infinity or a NaN gets the scale NaN, so all its decoded values are NaN. A block in
// which every magnitude is below 1e-30 gets scale 0. Equal on every instruction set.
struct QuantizeArgs {
  BlockCode code = BlockCode::kInt8;
  uint32_t block = 256;  // values per scale, a multiple of 16
  // With residual: replaced by the quantization error, value - scale * code, and by 0 in blocks whose scale
  // is NaN.
  float* values = nullptr;
  float* scales = nullptr;     // one per block; the last block may be shorter
  std::byte* codes = nullptr;  // one byte per value; kSign: one bit, the lowest first
  uint64_t count = 0;
  bool residual = false;
  bool stochastic = false;  // round up with the probability of the remainder; no effect for kSign
  uint32_t seed = 0;        // seed of the stochastic rounding
};

// values[i] = scale * code, or values[i] + scale * code if `add`.
struct DequantizeArgs {
  BlockCode code = BlockCode::kInt8;
  uint32_t block = 256;
  const float* scales = nullptr;
  const std::byte* codes = nullptr;
  float* values = nullptr;
  uint64_t count = 0;
  bool add = false;
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
  const float* addend = nullptr;  // for kLeft, of a single product; host only
  bool streaming = false;         // kMatrix: the matrix is read much later, so writes may bypass the caches
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

// Makes columns of `rows` values orthonormal, as hooks/powersgd/orthogonal.h: one column after the other in
// f64, dot products as the sum of kDotPartial partial sums.
inline constexpr uint32_t kDotPartial = 256;
struct OrthonormalArgs {
  float* columns = nullptr;  // the columns of one matrix, followed by those of the next
  uint64_t rows = 0;
  uint64_t rank = 0;
  uint64_t batch = 1;  // number of matrices
  double epsilon = 0;
  bool refill = false;  // replace a zero or linearly dependent column by a random one; otherwise by zero
  uint64_t seed = 0;
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
  uint32_t* scratch = nullptr;  // select_scratch(count) entries
};
inline constexpr uint32_t kSelectBins = 65536;
inline constexpr uint64_t kSelectRange = 4096;
constexpr uint64_t select_scratch(uint64_t count) {
  return 2 * uint64_t{kSelectBins} + 8 + 2 * ((count + kSelectRange - 1) / kSelectRange);
}

// Threads per block, for all kernels.
inline constexpr uint32_t kKernelThreads = 256;
inline constexpr uint64_t kFoldElementsPerBlock = 4096;
// Number of threads that together process one block of values (QuantizeArgs), or one range of values whose
// squares are summed (SquaresKernelArgs).
inline constexpr uint32_t kKernelLanes = 32;
inline constexpr uint32_t kKernelGroups = kKernelThreads / kKernelLanes;

// Work distribution of LowRankArgs. A dot product is the sum of kLowRankDots partial sums, one thread each. A
// block computes kLowRankLeftRows rows of the left factor. For the right factor a thread processes one column
// of the matrix, and for the product kLowRankProductRows values of one column.
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

// The passes of a selection; each is one launch.
enum class SelectPass : uint8_t { kClear, kUpper, kFindUpper, kLower, kFindLower, kCount, kScan, kWrite };
constexpr int kSelectPasses = 8;
struct SelectLaunch {
  SelectArgs args;
  SelectPass pass = SelectPass::kClear;
};

// Returns the number of blocks of a pass; 0: the pass has nothing to do.
inline uint64_t select_blocks(const SelectArgs& args, SelectPass pass) {
  const uint64_t ranges = (args.count + kSelectRange - 1) / kSelectRange;
  if (pass == SelectPass::kWrite) return ranges > 0 ? ranges : args.room > 0 ? 1 : 0;
  if (args.take == 0) return 0;
  if (pass == SelectPass::kClear) return 2 * kSelectBins / kKernelThreads;
  const bool one =
      pass == SelectPass::kFindUpper || pass == SelectPass::kFindLower || pass == SelectPass::kScan;
  return one ? 1 : ranges;
}

}  // namespace weft
