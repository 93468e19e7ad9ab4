#include "orthogonal.h"

#include <algorithm>
#include <cmath>

#include "common/bucket.h"
#include "device/device.h"

namespace weft::hook_powersgd {
namespace {

// Threshold for a column's norm after projection, relative to before: a smaller rest is rounding error.
constexpr double kDependent = 1e-5;

constexpr uint32_t kDotPartial = 256;

// Returns the dot product, as the sum of kDotPartial partial sums.
double dot(const float* a, const float* b, uint64_t count) {
  double sums[kDotPartial] = {};
  for (uint64_t begin = 0; begin < count; begin += kDotPartial) {
    const uint64_t some = std::min<uint64_t>(kDotPartial, count - begin);
    for (uint64_t k = 0; k < some; k++) sums[k] += double{a[begin + k]} * double{b[begin + k]};
  }
  for (uint64_t half = kDotPartial / 2; half > 0; half /= 2) {
    for (uint64_t k = 0; k < half; k++) sums[k] += sums[k + half];
  }
  return sums[0];
}

void scale(float* column, uint64_t rows, double factor) {
  for (uint64_t i = 0; i < rows; i++) column[i] = static_cast<float>(double{column[i]} * factor);
}

// Orthonormalises column k against those before it. False if it depends on them; it is zero then.
bool orthonormalize_column(float* columns, uint64_t rows, uint64_t k, double epsilon) {
  float* const column = columns + k * rows;
  const double norm = std::sqrt(dot(column, column, rows));
  if (norm == 0) return false;
  scale(column, rows, 1 / norm);
  for (uint64_t j = 0; j < k; j++) {
    const float* const other = columns + j * rows;
    const double along = dot(other, column, rows);
    for (uint64_t i = 0; i < rows; i++) {
      column[i] = static_cast<float>(double{column[i]} - along * double{other[i]});
    }
  }
  const double left = std::sqrt(dot(column, column, rows));
  if (left < kDependent) {
    std::fill(column, column + rows, 0.0f);
    return false;
  }
  scale(column, rows, 1 / (left + epsilon / norm));
  return true;
}

}  // namespace

void orthonormalize(float* columns, uint64_t rows, uint64_t rank, double epsilon) {
  for (uint64_t k = 0; k < rank; k++) orthonormalize_column(columns, rows, k, epsilon);
}

void orthonormalize_or_refill(float* columns, uint64_t rows, uint64_t rank, double epsilon, uint64_t seed) {
  for (uint64_t k = 0; k < rank; k++) {
    if (orthonormalize_column(columns, rows, k, epsilon)) continue;
    fill_random(columns + k * rows, rows, mix(seed ^ k));
    orthonormalize_column(columns, rows, k, epsilon);
  }
}

void fill_random(float* values, uint64_t count, uint64_t seed) {
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t bits = mix(seed ^ mix(i));
    int32_t sum = -2 * 65535;  // sum of four 16-bit numbers, centred at 0
    for (int part = 0; part < 64; part += 16) sum += static_cast<int32_t>(bits >> part & 0xFFFF);
    values[i] = static_cast<float>(sum) * 0x1p-15f;
  }
}

}  // namespace weft::hook_powersgd
