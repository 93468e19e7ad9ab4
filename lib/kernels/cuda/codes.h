// Converts a value to a one-byte code and back, one at a time. lib/kernels/quantize.cpp does the same with
// vectors.
#pragma once

#include <cmath>

#include "kernels/cuda/elements.h"

namespace weft::cuda {

// Returns a uniform number in [0, 1), by position and seed: a finaliser of MurmurHash3.
WEFT_KERNEL_CODE float uniform(uint32_t seed, uint64_t at) {
  uint32_t h = static_cast<uint32_t>(at) * 0x9E3779B9u + seed;
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  h ^= h >> 16;
  return static_cast<float>(h >> 8) * 5.9604644775390625e-08f;  // 2^-24
}

// Rounds v, which is at most a few million in magnitude, to a whole number.
template <bool kStochastic>
WEFT_KERNEL_CODE int32_t whole(float v, uint32_t seed, uint64_t at) {
  if constexpr (kStochastic) return static_cast<int32_t>(floorf(v + uniform(seed, at)));
  return static_cast<int32_t>(rintf(v));  // to nearest even
}

struct Int8Code {
  static constexpr float kLargest = 127;
  // Returns the code of a scaled value; *decoded is the value of the code.
  template <bool kStochastic>
  static WEFT_KERNEL_CODE uint8_t encode(float v, uint32_t seed, uint64_t at, float* decoded) {
    int32_t code = whole<kStochastic>(v, seed, at);
    code = code > 127 ? 127 : code < -127 ? -127 : code;
    *decoded = static_cast<float>(code);
    return static_cast<uint8_t>(code);
  }
  static WEFT_KERNEL_CODE float decode(uint8_t code) { return static_cast<float>(static_cast<int8_t>(code)); }
};

// The counterpart of Fp8 in lib/kernels/quantize.cpp.
template <int kMantissa, int kBias, uint32_t kMostBits>
struct Fp8Code {
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << kMantissa;
  static constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  static constexpr float kLargest = kMostBits == 0x7E ? 448 : 57344;
  static WEFT_KERNEL_CODE float denormal_unit() {
    return bits_as<float>(static_cast<uint32_t>(128 - kBias - kMantissa) << 23);
  }

  template <bool kStochastic>
  static WEFT_KERNEL_CODE uint8_t encode(float v, uint32_t seed, uint64_t at, float* decoded) {
    const auto bits = bits_as<uint32_t>(v);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t sign = bits - magnitude;
    uint32_t code;
    if (magnitude < kSmallestNormal) {
      code = static_cast<uint32_t>(
          whole<kStochastic>(bits_as<float>(magnitude) * (1 / denormal_unit()), seed, at));
    } else {
      uint32_t add;
      if constexpr (kStochastic) {
        add = static_cast<uint32_t>(uniform(seed, at) * static_cast<float>(1u << kShift));
      } else {
        add = (magnitude >> kShift & 1) + (1u << (kShift - 1)) - 1;
      }
      code = ((magnitude + add) >> kShift) - kRebias;
    }
    if (code > kMostBits) code = kMostBits;
    *decoded = value(code, sign);
    return static_cast<uint8_t>(code | sign >> 24);
  }
  static WEFT_KERNEL_CODE float decode(uint8_t code) { return value(code & 0x7Fu, (code & 0x80u) << 24); }
  static WEFT_KERNEL_CODE float value(uint32_t code, uint32_t sign) {
    const uint32_t bits = code < (1u << kMantissa)
                              ? bits_as<uint32_t>(static_cast<float>(code) * denormal_unit())
                              : (code + kRebias) << kShift;
    return bits_as<float>(bits | sign);
  }
};
using E4m3Code = Fp8Code<3, 7, 0x7E>;
using E5m2Code = Fp8Code<2, 15, 0x7B>;

}  // namespace weft::cuda
