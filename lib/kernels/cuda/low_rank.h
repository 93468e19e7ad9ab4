// The bodies of weft_low_rank_*. Their host counterpart is lib/kernels/low_rank.cpp: the same sums in the
// same order. (NaNs may differ in their bits.)
#pragma once

#include "kernels/cuda/block.h"

namespace weft::cuda {

constexpr uint32_t kLeftColumns = 4;  // of the factor, for each pass over the matrix
constexpr uint32_t kDots = kLowRankDots;
constexpr uint32_t kLeftRows = kLowRankLeftRows;
constexpr uint32_t kProductRows = kLowRankProductRows;
constexpr float kLargest = 3.40282347e38f;  // the largest finite magnitude

WEFT_KERNEL_CODE uint64_t ceil_of(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}
// Returns the arguments of one member of the batch.
WEFT_KERNEL_CODE LowRankArgs low_rank_of(const LowRankArgs& args, uint64_t number) {
  LowRankArgs one = args;
  if (args.offsets != nullptr) one.matrix += args.offsets[number];
  one.left += number * args.rows * args.rank;
  one.right += number * args.columns * args.rank;
  one.residual = args.residual == nullptr ? one.matrix : args.residual + number * args.rows * args.columns;
  return one;
}

struct LeftShared {
  float sums[kLeftColumns][kKernelThreads];
};

WEFT_KERNEL_CODE void left_factor(const Block& block, LeftShared& shared, const LowRankArgs& args) {
  const uint64_t tiles = ceil_of(args.rows, kLeftRows);
  const LowRankArgs one = low_rank_of(args, block.index / tiles);
  const uint64_t first = block.index % tiles * kLeftRows;
  for (uint64_t k = 0; k < args.rank; k += kLeftColumns) {
    const auto some = static_cast<uint32_t>(args.rank - k < kLeftColumns ? args.rank - k : kLeftColumns);
    block.each([&](uint32_t t) {
      const uint64_t row = first + t / kDots;
      float sums[kLeftColumns] = {};
      if (row < one.rows) {
        const float* const values = one.matrix + row * one.columns;
        for (uint64_t j = t % kDots; j < one.columns; j += kDots) {
          const float value = values[j];
          WEFT_KERNEL_UNROLL
          for (uint32_t c = 0; c < kLeftColumns; c++) {
            if (c < some) sums[c] = sums[c] + value * one.right[(k + c) * one.columns + j];
          }
        }
      }
      for (uint32_t c = 0; c < kLeftColumns; c++) shared.sums[c][t] = sums[c];
    });
    for (uint32_t c = 0; c < some; c++) add_halves(block, shared.sums[c], kDots);
    block.each([&](uint32_t t) {
      const uint64_t row = first + t / kDots;
      const uint32_t c = t % kDots;
      if (row < one.rows && c < some) one.left[(k + c) * one.rows + row] = shared.sums[c][t - c];
    });
  }
}

WEFT_KERNEL_CODE void right_factor(const Block& block, const LowRankArgs& args) {
  const uint64_t tiles = ceil_of(args.columns, kKernelThreads);
  const LowRankArgs one = low_rank_of(args, block.index / tiles);
  block.each([&](uint32_t t) {
    const uint64_t j = block.index % tiles * kKernelThreads + t;
    if (j >= one.columns) return;
    for (uint64_t k = 0; k < one.rank; k += kLeftColumns) {
      const auto some = static_cast<uint32_t>(one.rank - k < kLeftColumns ? one.rank - k : kLeftColumns);
      float sums[kLeftColumns] = {};
      for (uint64_t i = 0; i < one.rows; i++) {
        const float value = one.matrix[i * one.columns + j];
        WEFT_KERNEL_UNROLL
        for (uint32_t c = 0; c < kLeftColumns; c++) {
          if (c < some) sums[c] = sums[c] + one.left[(k + c) * one.rows + i] * value;
        }
      }
      WEFT_KERNEL_UNROLL
      for (uint32_t c = 0; c < kLeftColumns; c++) {
        if (c < some) one.right[(k + c) * one.columns + j] = sums[c];
      }
    }
  });
}

WEFT_KERNEL_CODE void product(const Block& block, const LowRankArgs& args) {
  const uint64_t across = ceil_of(args.columns, kKernelThreads);
  const uint64_t tiles = ceil_of(args.rows, kProductRows) * across;
  const LowRankArgs one = low_rank_of(args, block.index / tiles);
  const uint64_t tile = block.index % tiles;
  block.each([&](uint32_t t) {
    const uint64_t j = tile % across * kKernelThreads + t;
    if (j >= one.columns) return;
    const uint64_t first = tile / across * kProductRows;
    for (uint64_t i = first; i < one.rows && i < first + kProductRows; i++) {
      float sum = one.left[i] * one.right[j];
      for (uint64_t k = 1; k < one.rank; k++)
        sum = sum + one.left[k * one.rows + i] * one.right[k * one.columns + j];
      const uint64_t at = i * one.columns + j;
      if (one.product == LowRank::kResidual) {
        const float residual = one.matrix[at] - sum;
        one.residual[at] = residual >= -kLargest && residual <= kLargest ? residual : 0.0f;
      } else {
        one.matrix[at] = sum;
      }
    }
  });
}

WEFT_KERNEL_CODE void low_rank(const Block& block, LeftShared& shared, const LowRankArgs& args) {
  switch (args.product) {
    case LowRank::kLeft:
      return left_factor(block, shared, args);
    case LowRank::kRight:
      return right_factor(block, args);
    default:
      return product(block, args);
  }
}

}  // namespace weft::cuda
