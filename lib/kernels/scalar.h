// Conversions between float types, one element at a time: for pairs that are too rare for vectors, and for
// code outside the kernels that needs one value. They round exactly like the vector kernels: once, to nearest
// even, denormals kept, every NaN becoming the positive quiet one. Threads: any thread.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace weft {

inline constexpr uint32_t kNanBits32 = 0x7FC00000;
inline constexpr uint64_t kNanBits64 = 0x7FF8000000000000;

inline float f32_from_bf16(uint16_t half) {
  return std::bit_cast<float>(uint32_t{half} << 16);
}

inline uint16_t bf16_from_f32(float value) {
  if (std::isnan(value)) return kNanBits32 >> 16;
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float f32_from_f16(uint16_t half) {
  const uint32_t magnitude = half & 0x7FFF;
  const uint32_t sign = uint32_t{half} << 16 & 0x80000000;
  uint32_t bits = (magnitude << 13) + (112u << 23);  // exponent bias 15 -> 127
  if (magnitude >= 0x7C00) {
    bits += 112u << 23;  // Inf and NaN: exponent 31 -> 255
  } else if (magnitude < 0x0400) {
    bits = std::bit_cast<uint32_t>(std::bit_cast<float>(bits + (1u << 23)) - 0x1p-14f);
  }
  return std::bit_cast<float>(sign | bits);
}

inline uint16_t f16_from_f32(float value) {
  if (std::isnan(value)) return 0x7E00;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t half;
  if (magnitude >= 0x477FF000) {  // 65520, halfway between the largest f16 and 2^16
    half = 0x7C00;
  } else if (magnitude < 0x38800000) {  // denormal: the unit of 0.5f is that of denormal f16, so + rounds
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
  } else {
    half = ((magnitude + 0xFFF + ((magnitude >> 13) & 1)) >> 13) - (112u << 10);
  }
  return static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
}

// Converts to f32, with the last bit set if anything was lost. Rounding the result to 16 bits then equals
// rounding once.
inline float f32_odd_from_f64(double value) {
  const auto nearest = static_cast<float>(value);
  if (std::isnan(value) || nearest == value) return nearest;
  const auto bits = std::bit_cast<uint32_t>(nearest);
  if (bits & 1) return nearest;
  return std::bit_cast<float>(std::fabs(double{nearest}) > std::fabs(value) ? bits - 1 : bits + 1);
}

}  // namespace weft
