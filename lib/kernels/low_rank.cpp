// Products of a matrix and thin factors, for every instruction set. Called through host_ops.cpp. All are
// bound by reading the matrix, so each reads or writes it once for up to four columns of the factors.
#include <algorithm>
#include <array>
#include <utility>

#include "kernels/targets.h"

// Compile this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/low_rank.cpp"
#include <hwy/foreach_target.h>

#include "kernels/elements-inl.h"
#include "kernels/per_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

using Wide = hn::CappedTag<float, 16>;
using One = hn::CappedTag<float, 1>;

// A dot product is the sum of 16 partial ones, whatever the width of vectors.
constexpr size_t kPartial = 16;

float total(const std::array<float, kPartial>& partial) {
  float sum[kPartial / 2];
  for (size_t i = 0; i < 8; i++) sum[i] = partial[i] + partial[i + 8];
  for (size_t i = 0; i < 4; i++) sum[i] += sum[i + 4];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// left[k][i] for kRank columns k of one row i.
template <size_t kRank>
HWY_INLINE void dots(const float* row, const LowRankArgs& args, uint64_t i, uint64_t k) {
  const Wide d;
  constexpr size_t kLanes = hn::MaxLanes(Wide());
  constexpr size_t kVectors = kPartial / kLanes;
  decltype(hn::Zero(d)) sums[kRank][kVectors];
  for (auto& column : sums) {
    for (auto& sum : column) sum = hn::Zero(d);
  }
  const uint64_t whole = args.columns / kPartial * kPartial;
  const float* const right = args.right + k * args.columns;
  for (uint64_t j = 0; j < whole; j += kPartial) {
    for (size_t v = 0; v < kVectors; v++) {
      const auto values = hn::LoadU(d, row + j + v * kLanes);
      for (size_t c = 0; c < kRank; c++) {
        const auto factor = hn::LoadU(d, right + c * args.columns + j + v * kLanes);
        sums[c][v] = hn::Add(sums[c][v], hn::Mul(values, factor));
      }
    }
  }
  for (size_t c = 0; c < kRank; c++) {
    std::array<float, kPartial> partial;
    for (size_t v = 0; v < kVectors; v++) hn::StoreU(sums[c][v], d, partial.data() + v * kLanes);
    for (uint64_t j = whole; j < args.columns; j++)
      partial[j - whole] += row[j] * right[c * args.columns + j];
    args.left[(k + c) * args.rows + i] = total(partial);
  }
}

// By value, here and below: what a loop stores cannot change its own copy.
template <size_t kRank>
void left_columns(LowRankArgs args, uint64_t k) {
  for (uint64_t i = 0; i < args.rows; i++) dots<kRank>(args.matrix + i * args.columns, args, i, k);
}

// right[k][j] += sum over kRows rows of left[k][i] * matrix[i][j], one after the other.
template <size_t kRows, class D>
HWY_INLINE void add_rows(D d, const LowRankArgs& args, uint64_t i, uint64_t k, uint64_t j) {
  decltype(hn::Zero(d)) rows[kRows];
  for (size_t r = 0; r < kRows; r++) rows[r] = hn::LoadU(d, args.matrix + (i + r) * args.columns + j);
  float* const right = args.right + k * args.columns + j;
  const float* const left = args.left + k * args.rows + i;
  auto sum = hn::LoadU(d, right);
  for (size_t r = 0; r < kRows; r++) sum = hn::Add(sum, hn::Mul(hn::Set(d, left[r]), rows[r]));
  hn::StoreU(sum, d, right);
}

template <size_t kRows>
void right_rows(LowRankArgs args, uint64_t i) {
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  constexpr uint64_t kTile = 2048;  // columns: what all columns of the factor read of the rows stays in cache
  for (uint64_t begin = 0; begin < args.columns; begin += kTile) {
    const uint64_t end = std::min(begin + kTile, args.columns);
    for (uint64_t k = 0; k < args.rank; k++) {
      uint64_t j = begin;
      for (; j + lanes <= end; j += lanes) add_rows<kRows>(d, args, i, k, j);
      for (; j < end; j++) add_rows<kRows>(One(), args, i, k, j);
    }
  }
}

template <bool kResidual, class D>
HWY_INLINE void row_of_product(D d, const LowRankArgs& args, uint64_t i, uint64_t j) {
  float* const at = args.matrix + i * args.columns + j;
  auto sum = hn::Mul(hn::Set(d, args.left[i]), hn::LoadU(d, args.right + j));
  for (uint64_t k = 1; k < args.rank; k++) {
    const auto left = hn::Set(d, args.left[k * args.rows + i]);
    sum = hn::Add(sum, hn::Mul(left, hn::LoadU(d, args.right + k * args.columns + j)));
  }
  if constexpr (kResidual) {
    const auto residual = hn::Sub(hn::LoadU(d, at), sum);
    hn::StoreU(hn::IfThenElseZero(hn::IsFinite(residual), residual), d, args.residual + i * args.columns + j);
  } else {
    hn::StoreU(sum, d, at);
  }
}

template <bool kResidual>
void product(LowRankArgs args) {
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  for (uint64_t i = 0; i < args.rows; i++) {
    uint64_t j = 0;
    for (; j + lanes <= args.columns; j += lanes) row_of_product<kResidual>(d, args, i, j);
    for (; j < args.columns; j++) row_of_product<kResidual>(One(), args, i, j);
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
  uint64_t i = 0;
  for (; i + 4 <= args.rows; i += 4) right_rows<4>(args, i);
  for (; i < args.rows; i++) right_rows<1>(args, i);
}

}  // namespace

void low_rank_product(const LowRankArgs& args) {
  switch (args.product) {
    case LowRank::kLeft:
      return left_product(args);
    case LowRank::kRight:
      return right_product(args);
    case LowRank::kMatrix:
      return product<false>(args);
    case LowRank::kResidual:
      return product<true>(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
