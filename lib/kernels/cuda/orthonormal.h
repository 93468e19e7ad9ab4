// The body of weft_orthonormalize. Its host counterpart is hooks/powersgd/orthogonal.cpp. One block of
// threads handles one matrix.
#pragma once

#include <cmath>

#include "kernels/cuda/block.h"

namespace weft::cuda {

struct OrthonormalShared {
  double sums[kKernelThreads];
};
static_assert(kDotPartial == kKernelThreads, "a thread a partial sum");

WEFT_KERNEL_CODE double dot(const Block& block, OrthonormalShared& shared, const float* a, const float* b,
                            uint64_t count) {
  block.each([&](uint32_t t) {
    double sum = 0;
    for (uint64_t i = t; i < count; i += kDotPartial)
      sum = sum + static_cast<double>(a[i]) * static_cast<double>(b[i]);
    shared.sums[t] = sum;
  });
  add_halves(block, shared.sums, kDotPartial);
  return block.read(shared.sums[0]);
}

// Replaces each value of a column by change(value, index).
template <class Change>
WEFT_KERNEL_CODE void change_column(const Block& block, float* column, uint64_t rows, Change&& change) {
  block.each([&](uint32_t t) {
    for (uint64_t i = t; i < rows; i += kKernelThreads) column[i] = change(column[i], i);
  });
}
WEFT_KERNEL_CODE void scale_column(const Block& block, float* column, uint64_t rows, double factor) {
  change_column(block, column, rows,
                [=](float v, uint64_t) { return static_cast<float>(static_cast<double>(v) * factor); });
}

WEFT_KERNEL_CODE bool orthonormal_column(const Block& block, OrthonormalShared& shared, float* columns,
                                         uint64_t rows, uint64_t k, double epsilon) {
  float* const column = columns + k * rows;
  const double norm = sqrt(dot(block, shared, column, column, rows));
  if (norm == 0) return false;
  scale_column(block, column, rows, 1 / norm);
  for (uint64_t j = 0; j < k; j++) {
    const float* const other = columns + j * rows;
    const double along = dot(block, shared, other, column, rows);
    change_column(block, column, rows, [=](float v, uint64_t i) {
      return static_cast<float>(static_cast<double>(v) - along * static_cast<double>(other[i]));
    });
  }
  const double left = sqrt(dot(block, shared, column, column, rows));
  if (left < 1e-5) {
    change_column(block, column, rows, [](float, uint64_t) { return 0.0f; });
    return false;
  }
  scale_column(block, column, rows, 1 / (left + epsilon / norm));
  return true;
}

// Equal to mix (hooks/common/bucket.h) and to what fill_random (hooks/powersgd/orthogonal.cpp) computes.
WEFT_KERNEL_CODE uint64_t mixed(uint64_t h) {
  h += 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}
WEFT_KERNEL_CODE float random_value(uint64_t seed, uint64_t i) {
  const uint64_t bits = mixed(seed ^ mixed(i));
  int32_t sum = -2 * 65535;
  for (int part = 0; part < 64; part += 16) sum += static_cast<int32_t>(bits >> part & 0xFFFF);
  return static_cast<float>(sum) * 3.0517578125e-05f;  // 2^-15
}

WEFT_KERNEL_CODE void orthonormalize(const Block& block, OrthonormalShared& shared,
                                     const OrthonormalArgs& args) {
  float* const columns = args.columns + block.index * args.rows * args.rank;
  for (uint64_t k = 0; k < args.rank; k++) {
    if (orthonormal_column(block, shared, columns, args.rows, k, args.epsilon) || !args.refill) continue;
    const uint64_t seed = mixed(args.seed ^ k);
    change_column(block, columns + k * args.rows, args.rows,
                  [=](float, uint64_t i) { return random_value(seed, i); });
    (void)orthonormal_column(block, shared, columns, args.rows, k, args.epsilon);
  }
}

}  // namespace weft::cuda
