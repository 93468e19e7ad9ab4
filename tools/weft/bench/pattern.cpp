#include "pattern.h"

#include <weft/weft.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "names.h"

namespace {

template <class T>
void put(double value, std::byte* out) {
  const T typed = static_cast<T>(value);
  std::memcpy(out, &typed, sizeof typed);
}

template <class T>
double get(const std::byte* in) {
  T typed;
  std::memcpy(&typed, in, sizeof typed);
  return static_cast<double>(typed);
}

// Exact for the values of tiles: zero and normal numbers of few bits.
void put_f16(double value, std::byte* out) {
  int exponent = 0;
  const double mantissa = std::frexp(value, &exponent);  // 0.5 <= mantissa < 1
  const auto bits =
      value == 0 ? uint16_t{0}
                 : static_cast<uint16_t>((exponent + 14) << 10 | (static_cast<int>(mantissa * 2048) & 0x3ff));
  std::memcpy(out, &bits, sizeof bits);
}

double get_f16(const std::byte* in) {
  uint16_t bits = 0;
  std::memcpy(&bits, in, sizeof bits);
  const int exponent = bits >> 10 & 31;
  const double magnitude = exponent == 31  ? NAN
                           : exponent == 0 ? std::ldexp(bits & 0x3ff, -24)
                                           : std::ldexp((bits & 0x3ff) | 0x400, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

void put_bf16(double value, std::byte* out) {
  std::byte whole[4];
  put<float>(value, whole);
  std::memcpy(out, whole + 2, 2);  // little-endian: the upper half
}

double get_bf16(const std::byte* in) {
  std::byte whole[4] = {};
  std::memcpy(whole + 2, in, 2);
  return get<float>(whole);
}

struct Codec {
  void (*put)(double, std::byte*);
  double (*get)(const std::byte*);
};

Codec codec(int32_t dtype) {
  switch (dtype) {
    case WEFT_DTYPE_U8:
      return {put<uint8_t>, get<uint8_t>};
    case WEFT_DTYPE_I8:
      return {put<int8_t>, get<int8_t>};
    case WEFT_DTYPE_U16:
      return {put<uint16_t>, get<uint16_t>};
    case WEFT_DTYPE_I16:
      return {put<int16_t>, get<int16_t>};
    case WEFT_DTYPE_U32:
      return {put<uint32_t>, get<uint32_t>};
    case WEFT_DTYPE_I32:
      return {put<int32_t>, get<int32_t>};
    case WEFT_DTYPE_U64:
      return {put<uint64_t>, get<uint64_t>};
    case WEFT_DTYPE_I64:
      return {put<int64_t>, get<int64_t>};
    case WEFT_DTYPE_F16:
      return {put_f16, get_f16};
    case WEFT_DTYPE_BF16:
      return {put_bf16, get_bf16};
    case WEFT_DTYPE_F32:
      return {put<float>, get<float>};
    default:
      return {put<double>, get<double>};
  }
}

// Values are small, so that 8-bit sums of 16 ranks do not wrap; products stay powers of two.
double input(int32_t op, int rank, uint64_t k) {
  const uint64_t mixed = (k * 2654435761u + static_cast<uint64_t>(rank) * 40503u) >> 5;
  if (op == WEFT_OP_PROD) return rank < 6 && mixed % 2 == 1 ? 2 : 1;
  return static_cast<double>(mixed % 8);
}

double fold(int32_t op, double a, double b) {
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  switch (op) {
    case WEFT_OP_PROD:
      return a * b;
    case WEFT_OP_MIN:
      return std::min(a, b);
    case WEFT_OP_MAX:
      return std::max(a, b);
    case WEFT_OP_BAND:
      return static_cast<double>(x & y);
    case WEFT_OP_BOR:
      return static_cast<double>(x | y);
    case WEFT_OP_BXOR:
      return static_cast<double>(x ^ y);
    default:
      return a + b;
  }
}

}  // namespace

Tile::Tile(int32_t dtype, const std::vector<double>& values)
    : size_(dtype_size(dtype)), values_(values), twice_(2 * kLength * size_), dtype_(dtype) {
  const Codec of = codec(dtype);
  for (uint64_t k = 0; k < 2 * kLength; ++k) of.put(values[k % kLength], &twice_[k * size_]);
}

Tile Tile::of_rank(int32_t dtype, int32_t op, int rank) {
  std::vector<double> values(kLength);
  for (uint64_t k = 0; k < kLength; ++k) values[k] = input(op, rank, k);
  return {dtype, values};
}

Tile Tile::reduced(int32_t dtype, int32_t op, int ranks, double factor) {
  std::vector<double> values(kLength);
  for (uint64_t k = 0; k < kLength; ++k) {
    double value = input(op, 0, k);
    for (int rank = 1; rank < ranks; ++rank) value = fold(op, value, input(op, rank, k));
    if (op == WEFT_OP_AVG) value /= ranks;
    if (op == WEFT_OP_PREMUL_SUM) value *= factor;
    values[k] = value;
  }
  return {dtype, values};
}

void Tile::fill(std::byte* data, uint64_t count, uint64_t offset) const {
  const std::byte* start = &twice_[offset % kLength * size_];
  for (uint64_t done = 0; done < count; done += kLength) {
    std::memcpy(data + done * size_, start, std::min(kLength, count - done) * size_);
  }
}

bool Tile::matches(const std::byte* data, uint64_t count, uint64_t offset, double part_of_largest) const {
  const std::byte* start = &twice_[offset % kLength * size_];
  const Codec of = codec(dtype_);
  const double tolerance = dtype_ == WEFT_DTYPE_F16 ? 0x1p-10 : dtype_ == WEFT_DTYPE_BF16 ? 0x1p-7 : 0x1p-22;
  double largest = 0;
  for (const double value : values_) largest = std::max(largest, std::abs(value));
  for (uint64_t done = 0; done < count; done += kLength) {
    const uint64_t part = std::min(kLength, count - done);
    const std::byte* here = data + done * size_;
    if (std::memcmp(here, start, part * size_) == 0) continue;
    for (uint64_t i = 0; i < part; ++i) {  // values that this file rounded differently (averages)
      const double wanted = values_[(i + offset) % kLength];
      const double found = of.get(here + i * size_);
      const double allowed = std::max(tolerance * std::abs(wanted), part_of_largest * largest);
      if (!(std::abs(found - wanted) <= allowed)) return false;
    }
  }
  return true;
}
