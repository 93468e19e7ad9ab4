// A second implementation of the kernels' arithmetic, one element at a time: it rounds by nearbyint in f64
// and shares no code with lib/kernels. test_kernels.cpp and bench/kernels.cpp compare with it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "device/device.h"

namespace weft::reference {

// Rounds to nearest even in a binary format of `digits` significant bits. The smallest exponent is `emin` (of
// 1.xxx), the largest `emax`.
inline double round_to(double value, int digits, int emin, int emax) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), emin);
  const double unit = std::ldexp(1.0, exponent - digits + 1);
  const double rounded = std::nearbyint(value / unit) * unit;
  if (std::fabs(rounded) >= std::ldexp(1.0, emax + 1)) return std::copysign(INFINITY, value);
  return rounded;
}

// A 16-bit format with `kBits` stored mantissa bits.
template <int kBits>
struct Half {
  static constexpr int kEmax = kBits == 10 ? 15 : 127;
  static constexpr int kEmin = 1 - kEmax;

  static double widen(uint16_t half) {
    const int exponent = (half & 0x7FFF) >> kBits;
    const int mantissa = half & ((1 << kBits) - 1);
    const double sign = half & 0x8000 ? -1 : 1;
    if (exponent == 2 * kEmax + 1) return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(mantissa, kEmin - kBits);
    return sign * std::ldexp((1 << kBits) + mantissa, exponent - kEmax - kBits);
  }
  static uint16_t narrow(double value) {
    constexpr int kInf = (2 * kEmax + 1) << kBits;
    if (std::isnan(value)) return kInf | 1 << (kBits - 1);
    const int sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(round_to(value, kBits + 1, kEmin, kEmax));
    if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | kInf);
    if (magnitude < std::ldexp(1.0, kEmin)) {
      return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(magnitude, kBits - kEmin)));
    }
    const int exponent = std::ilogb(magnitude);
    const int mantissa = static_cast<int>(std::ldexp(magnitude, kBits - exponent)) - (1 << kBits);
    return static_cast<uint16_t>(sign | (exponent + kEmax) << kBits | mantissa);
  }
};
using Half16 = Half<10>;
using Brain16 = Half<7>;

// Loads an element as f64, which represents every value of these types.
inline double load(Dtype dtype, const std::byte* from) {
  uint16_t half;
  float f32;
  double f64;
  switch (dtype) {
    case Dtype::kF16:
      std::memcpy(&half, from, 2);
      return Half16::widen(half);
    case Dtype::kBf16:
      std::memcpy(&half, from, 2);
      return Brain16::widen(half);
    case Dtype::kF32:
      std::memcpy(&f32, from, 4);
      return f32;
    default:
      std::memcpy(&f64, from, 8);
      return f64;
  }
}

inline void store(Dtype dtype, double value, std::byte* to) {
  if (std::isnan(value)) value = std::numeric_limits<double>::quiet_NaN();
  const uint16_t half = dtype == Dtype::kF16 ? Half16::narrow(value) : Brain16::narrow(value);
  const auto f32 = std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(value);
  switch (dtype) {
    case Dtype::kF16:
    case Dtype::kBf16:
      std::memcpy(to, &half, 2);
      break;
    case Dtype::kF32:
      std::memcpy(to, &f32, 4);
      break;
    default:
      std::memcpy(to, &value, 8);
  }
}

template <class T>
T apply(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kProd:
      if constexpr (std::is_integral_v<T>) return static_cast<T>(uint64_t(a) * uint64_t(b));
      return static_cast<T>(a * b);
    case ReduceOp::kMin:
      return b < a || b != b ? b : a;
    case ReduceOp::kMax:
      return a < b || b != b ? b : a;
    case ReduceOp::kBand:
      if constexpr (std::is_integral_v<T>) return a & b;
      break;
    case ReduceOp::kBor:
      if constexpr (std::is_integral_v<T>) return a | b;
      break;
    case ReduceOp::kBxor:
      if constexpr (std::is_integral_v<T>) return a ^ b;
      break;
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) return static_cast<T>(uint64_t(a) + uint64_t(b));
  return static_cast<T>(a + b);
}

template <class Math>
double fold_float(const FoldArgs& args, uint64_t offset) {
  const auto pre = static_cast<Math>(args.prescale);
  const auto post = static_cast<Math>(args.postscale);
  Math sum{};
  for (int j = 0; j < args.input_count; j++) {
    const Math value = static_cast<Math>(load(args.dtype, args.inputs[j] + offset)) * pre;
    sum = j == 0 ? value : apply<Math>(args.op, sum, value);
  }
  return sum * post;
}

template <class T>
void fold_integer(const FoldArgs& args, uint64_t offset, std::byte* to) {
  T sum{};
  for (int j = 0; j < args.input_count; j++) {
    T value;
    std::memcpy(&value, args.inputs[j] + offset, sizeof value);
    sum = j == 0 ? value : apply<T>(args.op, sum, value);
  }
  std::memcpy(to, &sum, sizeof sum);
}

// Returns the expected contents of every output of args. Only reads the inputs.
inline std::vector<std::byte> fold(const FoldArgs& args) {
  const uint32_t size = dtype_size(args.dtype);
  std::vector<std::byte> result(args.count * size);
  for (uint64_t at = 0; at < result.size(); at += size) {
    std::byte* to = result.data() + at;
    switch (args.dtype) {
      case Dtype::kU8:
        fold_integer<uint8_t>(args, at, to);
        break;
      case Dtype::kI8:
        fold_integer<int8_t>(args, at, to);
        break;
      case Dtype::kU16:
        fold_integer<uint16_t>(args, at, to);
        break;
      case Dtype::kI16:
        fold_integer<int16_t>(args, at, to);
        break;
      case Dtype::kU32:
        fold_integer<uint32_t>(args, at, to);
        break;
      case Dtype::kI32:
        fold_integer<int32_t>(args, at, to);
        break;
      case Dtype::kU64:
        fold_integer<uint64_t>(args, at, to);
        break;
      case Dtype::kI64:
        fold_integer<int64_t>(args, at, to);
        break;
      case Dtype::kF64:
        store(args.dtype, fold_float<double>(args, at), to);
        break;
      default:
        store(args.dtype, fold_float<float>(args, at), to);
    }
  }
  return result;
}

// Returns the expected contents of args.dst after a copy (add: an accumulate) between floating-point types.
inline std::vector<std::byte> convert(const CopyArgs& args, bool add) {
  const uint32_t from = dtype_size(args.src_dtype), to = dtype_size(args.dst_dtype);
  const bool wide = from == 8 || to == 8;
  std::vector<std::byte> result(args.count * to);
  for (uint64_t i = 0; i < args.count; i++) {
    double value = load(args.src_dtype, args.src + i * from);
    value = wide ? value * args.scale : static_cast<float>(value) * static_cast<float>(args.scale);
    if (add) {
      const double before = load(args.dst_dtype, args.dst + i * to);
      value = wide ? before + value : static_cast<float>(before) + static_cast<float>(value);
    }
    store(args.dst_dtype, value, result.data() + i * to);
  }
  return result;
}

}  // namespace weft::reference
