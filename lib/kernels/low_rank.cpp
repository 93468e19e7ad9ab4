// Products of a matrix and thin factors, for every instruction set. Called through host_ops.cpp. Memory
// traffic of the matrix limits all of them, so each pass reads or writes it once for up to four columns of
// the factors.
#include <algorithm>
#include <array>
#include <utility>

#include "kernels/targets.h"

// Compile this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/low_rank.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>

#include "kernels/elements-inl.h"
#include "kernels/per_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

// Unrolls a loop of few rounds, so that its arrays stay in registers.
#define WEFT_UNROLL _Pragma("GCC unroll 16")

using Wide = hn::CappedTag<float, 16>;
using One = hn::CappedTag<float, 1>;

// A dot product is the sum of 16 partial sums, for every vector width.
constexpr size_t kPartial = 16;

float total(const std::array<float, kPartial>& partial) {
  float sum[kPartial / 2];
  for (size_t i = 0; i < 8; i++) sum[i] = partial[i] + partial[i + 8];
  for (size_t i = 0; i < 4; i++) sum[i] += sum[i + 4];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// Rows whose dot products are computed together; limited by the number of registers.
constexpr size_t kTogether = HWY_TARGET <= HWY_AVX3 ? 4 : 1;

// Computes left[k][i] for kRank columns k and kRows rows from i on. kAdd: first adds the addend's rows to
// the matrix's rows.
template <size_t kRows, size_t kRank, bool kAdd>
HWY_INLINE void dots(const LowRankArgs& args, uint64_t i, uint64_t k) {
  const Wide d;
  constexpr size_t kLanes = hn::MaxLanes(Wide());
  constexpr size_t kVectors = kPartial / kLanes;
  float* const rows = args.matrix + i * args.columns;
  const float* const addends = kAdd ? args.addend + i * args.columns : nullptr;
  const float* const right = args.right + k * args.columns;
  decltype(hn::Zero(d)) sums[kRows * kRank * kVectors];
  WEFT_UNROLL for (auto& sum : sums) sum = hn::Zero(d);
  const uint64_t whole = args.columns / kPartial * kPartial;
  for (uint64_t j = 0; j < whole; j += kPartial) {
    WEFT_UNROLL for (size_t v = 0; v < kVectors; v++) {
      const uint64_t at = j + v * kLanes;
      decltype(hn::Zero(d)) values[kRows];
      WEFT_UNROLL for (size_t r = 0; r < kRows; r++) {
        values[r] = hn::LoadU(d, rows + r * args.columns + at);
        if constexpr (kAdd) {
          values[r] = hn::Add(values[r], hn::LoadU(d, addends + r * args.columns + at));
          hn::StoreU(values[r], d, rows + r * args.columns + at);
        }
      }
      WEFT_UNROLL for (size_t c = 0; c < kRank; c++) {
        const auto factor = hn::LoadU(d, right + c * args.columns + at);
        WEFT_UNROLL for (size_t r = 0; r < kRows; r++) {
          auto& sum = sums[(r * kRank + c) * kVectors + v];
          sum = hn::Add(sum, hn::Mul(values[r], factor));
        }
      }
    }
  }
  for (size_t r = 0; r < kRows; r++) {
    float* const row = rows + r * args.columns;
    for (uint64_t j = whole; kAdd && j < args.columns; j++) row[j] += addends[r * args.columns + j];
    for (size_t c = 0; c < kRank; c++) {
      std::array<float, kPartial> partial;
      for (size_t v = 0; v < kVectors; v++) {
        hn::StoreU(sums[(r * kRank + c) * kVectors + v], d, partial.data() + v * kLanes);
      }
      for (uint64_t j = whole; j < args.columns; j++)
        partial[j - whole] += row[j] * right[c * args.columns + j];
      args.left[(k + c) * args.rows + i + r] = total(partial);
    }
  }
}

// Takes args by value, here and below, because the loop's stores cannot change a local copy.
template <size_t kRank, bool kAdd>
void left_columns(LowRankArgs args, uint64_t k) {
  uint64_t i = 0;
  for (; i + kTogether <= args.rows; i += kTogether) dots<kTogether, kRank, kAdd>(args, i, k);
  for (; i < args.rows; i++) dots<1, kRank, kAdd>(args, i, k);
}
// The addend is added with the first columns.
template <size_t kRank>
void left_columns(const LowRankArgs& args, uint64_t k) {
  (k == 0 && args.addend != nullptr ? left_columns<kRank, true> : left_columns<kRank, false>)(args, k);
}

// Computes right[k][j] += sum over kRows rows of left[k][i] * matrix[i][j], one row after the other, for
// kRank columns k.
template <size_t kRows, size_t kRank, class D>
HWY_INLINE void add_rows(D d, const LowRankArgs& args, uint64_t i, uint64_t k, uint64_t j) {
  decltype(hn::Zero(d)) rows[kRows];
  WEFT_UNROLL for (size_t r = 0; r < kRows; r++) {
    rows[r] = hn::LoadU(d, args.matrix + (i + r) * args.columns + j);
  }
  WEFT_UNROLL for (size_t c = 0; c < kRank; c++) {
    float* const right = args.right + (k + c) * args.columns + j;
    const float* const left = args.left + (k + c) * args.rows + i;
    auto sum = hn::LoadU(d, right);
    WEFT_UNROLL for (size_t r = 0; r < kRows; r++) {
      sum = hn::Add(sum, hn::Mul(hn::Set(d, left[r]), rows[r]));
    }
    hn::StoreU(sum, d, right);
  }
}

template <size_t kRows, size_t kRank>
void right_rows(LowRankArgs args, uint64_t i, uint64_t k) {
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  uint64_t j = 0;
  for (; j + lanes <= args.columns; j += lanes) add_rows<kRows, kRank>(d, args, i, k, j);
  for (; j < args.columns; j++) add_rows<kRows, kRank>(One(), args, i, k, j);
}

template <size_t kRank>
void right_columns(const LowRankArgs& args, uint64_t k) {
  uint64_t i = 0;
  for (; i + 4 <= args.rows; i += 4) right_rows<4, kRank>(args, i, k);
  for (; i < args.rows; i++) right_rows<1, kRank>(args, i, k);
}

// The destination of a product.
enum class Into { kMatrix, kMatrixStreamed, kResidual };

template <Into kInto, class D, class V>
HWY_INLINE void put(D d, const LowRankArgs& args, uint64_t at, V sum) {
  if constexpr (kInto == Into::kResidual) {
    const auto residual = hn::Sub(hn::LoadU(d, args.matrix + at), sum);
    hn::StoreU(hn::IfThenElseZero(hn::IsFinite(residual), residual), d, args.residual + at);
  } else if constexpr (kInto == Into::kMatrixStreamed) {
    hn::Stream(sum, d, args.matrix + at);
  } else {
    hn::StoreU(sum, d, args.matrix + at);
  }
}

// Computes elements [j, end) of row i in whole vectors; returns where they end. kRank columns of the factors
// stay in registers; 0: any number.
template <Into kInto, size_t kRank, class D>
HWY_INLINE uint64_t row_of_product(D d, const LowRankArgs& args, uint64_t i, uint64_t j, uint64_t end) {
  const size_t lanes = hn::Lanes(d);
  decltype(hn::Zero(d)) left[std::max<size_t>(kRank, 1)];
  WEFT_UNROLL for (size_t k = 0; k < kRank; k++) left[k] = hn::Set(d, args.left[k * args.rows + i]);
  for (; j + lanes <= end; j += lanes) {
    auto sum = hn::Mul(kRank > 0 ? left[0] : hn::Set(d, args.left[i]), hn::LoadU(d, args.right + j));
    WEFT_UNROLL for (size_t k = 1; k < kRank; k++) {
      sum = hn::Add(sum, hn::Mul(left[k], hn::LoadU(d, args.right + k * args.columns + j)));
    }
    for (uint64_t k = 1; kRank == 0 && k < args.rank; k++) {
      const auto one = hn::Set(d, args.left[k * args.rows + i]);
      sum = hn::Add(sum, hn::Mul(one, hn::LoadU(d, args.right + k * args.columns + j)));
    }
    put<kInto>(d, args, i * args.columns + j, sum);
  }
  return j;
}

template <Into kInto, size_t kRank>
void product_of(LowRankArgs args) {
  constexpr Into kEdge = kInto == Into::kMatrixStreamed ? Into::kMatrix : kInto;
  const Wide d;
  const uint64_t bytes = hn::Lanes(d) * sizeof(float);
  for (uint64_t i = 0; i < args.rows; i++) {
    uint64_t j = 0;
    if constexpr (kInto == Into::kMatrixStreamed) {  // streaming stores need aligned vectors
      const auto row = reinterpret_cast<uintptr_t>(args.matrix + i * args.columns);
      const uint64_t head = std::min<uint64_t>(-row % bytes / sizeof(float), args.columns);
      j = row_of_product<kEdge, kRank>(One(), args, i, 0, head);
    }
    j = row_of_product<kInto, kRank>(d, args, i, j, args.columns);
    row_of_product<kEdge, kRank>(One(), args, i, j, args.columns);
  }
  if constexpr (kInto == Into::kMatrixStreamed) hwy::FlushStream();
}

template <Into kInto>
void product(const LowRankArgs& args) {
  switch (args.rank) {
    case 1:
      return product_of<kInto, 1>(args);
    case 2:
      return product_of<kInto, 2>(args);
    case 4:
      return product_of<kInto, 4>(args);
    default:
      return product_of<kInto, 0>(args);
  }
}

void left_product(const LowRankArgs& args) {
  uint64_t k = 0;
  for (; k + 4 <= args.rank; k += 4) left_columns<4>(args, k);
  for (; k + 2 <= args.rank; k += 2) left_columns<2>(args, k);
  for (; k < args.rank; k++) left_columns<1>(args, k);
}

void right_product(const LowRankArgs& args) {
  std::fill(args.right, args.right + args.rank * args.columns, 0.0f);
  uint64_t k = 0;
  for (; k + 4 <= args.rank; k += 4) right_columns<4>(args, k);
  for (; k + 2 <= args.rank; k += 2) right_columns<2>(args, k);
  for (; k < args.rank; k++) right_columns<1>(args, k);
}

}  // namespace

void low_rank_product(const LowRankArgs& args) {
  switch (args.product) {
    case LowRank::kLeft:
      return left_product(args);
    case LowRank::kRight:
      return right_product(args);
    case LowRank::kMatrix:
      return args.streaming ? product<Into::kMatrixStreamed>(args) : product<Into::kMatrix>(args);
    case LowRank::kResidual:
      return product<Into::kResidual>(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
