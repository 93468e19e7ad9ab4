// Encodes values as codes of one byte or one bit, with a scale for each block, and decodes them, for every
// instruction set. Called through host_ops.cpp.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/targets.h"

// Compile this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cpp"
#include <hwy/foreach_target.h>

#include "kernels/elements-inl.h"
#include "kernels/per_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

using Wide = hn::CappedTag<float, 16>;
using One = hn::CappedTag<float, 1>;
template <class D>
using Unsigned = hn::RebindToUnsigned<D>;
template <class D>
using Signed = hn::RebindToSigned<D>;

// Below it a block counts as zero, so that scales and their inverses are normal.
constexpr float kSmallest = 1e-30f;
constexpr int32_t kInfinity = 0x7F800000;

// Returns uniform numbers in [0, 1), by position and seed: a finaliser of MurmurHash3.
template <class D>
HWY_INLINE auto uniform(D d, uint32_t seed, uint64_t at) {
  const Unsigned<D> du;
  auto h = hn::Iota(du, static_cast<uint32_t>(at));
  h = hn::Add(hn::Mul(h, hn::Set(du, 0x9E3779B9u)), hn::Set(du, seed));
  h = hn::Xor(h, hn::ShiftRight<16>(h));
  h = hn::Mul(h, hn::Set(du, 0x85EBCA6Bu));
  h = hn::Xor(h, hn::ShiftRight<13>(h));
  h = hn::Mul(h, hn::Set(du, 0xC2B2AE35u));
  h = hn::Xor(h, hn::ShiftRight<16>(h));
  const auto bits = hn::BitCast(Signed<D>(), hn::ShiftRight<8>(h));
  return hn::Mul(hn::ConvertTo(d, bits), hn::Set(d, 0x1p-24f));
}

// Rounds v, which is at most a few million in magnitude, to whole numbers.
template <bool kStochastic, class D, class V>
HWY_INLINE auto whole(D d, V v, uint32_t seed, uint64_t at) {
  if constexpr (kStochastic) {
    return hn::ConvertTo(Signed<D>(), hn::Floor(hn::Add(v, uniform(d, seed, at))));
  } else {
    return hn::NearestInt(v);
  }
}

struct Int8 {
  static constexpr float kLargest = 127;

  // Stores the codes of scaled values, and returns the values of the codes.
  template <bool kStochastic, class D, class V>
  static HWY_INLINE auto encode(D d, V v, uint32_t seed, uint64_t at, std::byte* to) {
    const Signed<D> di;
    auto code = whole<kStochastic>(d, v, seed, at);
    code = hn::Max(hn::Min(code, hn::Set(di, 127)), hn::Set(di, -127));
    const hn::Rebind<int8_t, D> d8;
    hn::StoreU(hn::DemoteTo(d8, code), d8, as<int8_t>(to));
    return hn::ConvertTo(d, code);
  }
  template <class D>
  static HWY_INLINE auto decode(D d, const std::byte* from) {
    const auto codes = hn::LoadU(hn::Rebind<int8_t, D>(), as<int8_t>(from));
    return hn::ConvertTo(d, hn::PromoteTo(Signed<D>(), codes));
  }
};

// fp8 with kMantissa mantissa bits and the exponent bias kBias. The codes of scaled values are whole numbers:
// the upper bits of the f32 with another bias.
template <int kMantissa, int kBias, uint32_t kMostBits>
struct Fp8 {
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << kMantissa;
  static constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  static constexpr float kLargest =
      std::bit_cast<float>((kMostBits + kRebias) << kShift);  // not NaN, not Inf
  static constexpr float kDenormal =
      std::bit_cast<float>(static_cast<uint32_t>(128 - kBias - kMantissa) << 23);

  template <bool kStochastic, class D, class V>
  static HWY_INLINE auto encode(D d, V v, uint32_t seed, uint64_t at, std::byte* to) {
    const Unsigned<D> du;
    const Signed<D> di;
    const auto bits = hn::BitCast(du, v);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
    const auto sign = hn::Sub(bits, magnitude);
    const auto add = round_up<kStochastic>(d, magnitude, seed, at);
    const auto normal = hn::Sub(hn::ShiftRight<kShift>(hn::Add(magnitude, add)), hn::Set(du, kRebias));
    const auto scaled = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 1 / kDenormal));
    const auto denormal = hn::BitCast(du, whole<kStochastic>(d, scaled, seed, at));
    const auto is_denormal =
        hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(kSmallestNormal)));
    auto code = hn::IfThenElse(hn::RebindMask(du, is_denormal), denormal, normal);
    code = hn::BitCast(du, hn::Min(hn::BitCast(di, code), hn::Set(di, static_cast<int32_t>(kMostBits))));
    const hn::Rebind<uint8_t, D> d8;
    const auto full = hn::Or(code, hn::ShiftRight<24>(sign));
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, full)), d8, as<uint8_t>(to));
    return value(d, code, sign);
  }
  // Returns the number to add to the bits of a normal number before its lower bits are cut off.
  template <bool kStochastic, class D, class U>
  static HWY_INLINE auto round_up(D d, U magnitude, uint32_t seed, uint64_t at) {
    const Unsigned<D> du;
    if constexpr (kStochastic) {
      const auto u = hn::Mul(uniform(d, seed, at), hn::Set(d, static_cast<float>(1u << kShift)));
      return hn::BitCast(du, hn::ConvertTo(Signed<D>(), u));
    } else {
      const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(du, 1u));
      return hn::Add(odd, hn::Set(du, (1u << (kShift - 1)) - 1));
    }
  }
  template <class D>
  static HWY_INLINE auto decode(D d, const std::byte* from) {
    const Unsigned<D> du;
    const auto full = hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint8_t, D>(), as<uint8_t>(from)));
    const auto code = hn::And(full, hn::Set(du, 0x7Fu));
    return value(d, code, hn::ShiftLeft<24>(hn::Sub(full, code)));
  }
  // Returns the value of a 7-bit code, with the sign of an f32.
  template <class D, class U>
  static HWY_INLINE auto value(D d, U code, U sign) {
    const Unsigned<D> du;
    const Signed<D> di;
    const auto normal = hn::ShiftLeft<kShift>(hn::Add(code, hn::Set(du, kRebias)));
    const auto denormal = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, code)), hn::Set(d, kDenormal));
    const auto is_denormal = hn::Lt(hn::BitCast(di, code), hn::Set(di, 1 << kMantissa));
    const auto bits = hn::IfThenElse(hn::RebindMask(du, is_denormal), hn::BitCast(du, denormal), normal);
    return hn::BitCast(d, hn::Or(bits, sign));
  }
};
using E4m3 = Fp8<3, 7, 0x7E>;
using E5m2 = Fp8<2, 15, 0x7B>;

// Returns the bits of the largest magnitude of a block, as an integer: NaN is larger than Inf.
int32_t largest_bits(const float* values, uint64_t count) {
  const Wide d;
  const Signed<Wide> di;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(di, 0x7FFFFFFF);
  auto most = hn::Zero(di);
  uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    most = hn::Max(most, hn::And(hn::BitCast(di, hn::LoadU(d, values + i)), mask));
  }
  std::array<int32_t, 16> each{};
  hn::StoreU(most, di, each.data());
  int32_t bits = *std::max_element(each.begin(), each.end());
  for (; i < count; i++) bits = std::max(bits, std::bit_cast<int32_t>(values[i]) & 0x7FFFFFFF);
  return bits;
}

template <class Code, bool kStochastic, class D>
HWY_INLINE void quantize_step(D d, const QuantizeArgs& args, uint64_t at, float scale, float inverse) {
  const auto v = hn::LoadU(d, args.values + at);
  const auto decoded =
      Code::template encode<kStochastic>(d, hn::Mul(v, hn::Set(d, inverse)), args.seed, at, args.codes + at);
  if (args.residual) {
    hn::StoreU(hn::Sub(v, hn::Mul(decoded, hn::Set(d, scale))), d, args.values + at);
  }
}

// Encodes a block that has no usable scale; it decodes to all NaN, or to all zero.
void quantize_nothing(const QuantizeArgs& args, uint64_t begin, uint64_t end, bool lose) {
  std::fill(args.codes + begin, args.codes + end, std::byte{0});
  if (args.residual && lose) std::fill(args.values + begin, args.values + end, 0.0f);
}

template <class Code, bool kStochastic>
void quantize_all(const QuantizeArgs& given) {
  const QuantizeArgs args = given;
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  float* scale = args.scales;
  for (uint64_t begin = 0; begin < args.count; begin += args.block, scale++) {
    const uint64_t end = std::min(begin + args.block, args.count);
    const int32_t bits = largest_bits(args.values + begin, end - begin);
    const auto largest = std::bit_cast<float>(bits);
    if (bits >= kInfinity || largest < kSmallest) {
      const bool lose = bits >= kInfinity;
      *scale = lose ? std::bit_cast<float>(kNanBits32) : 0.0f;
      quantize_nothing(args, begin, end, lose);
      continue;
    }
    *scale = largest / Code::kLargest;
    const float inverse = 1 / *scale;
    uint64_t i = begin;
    for (; i + lanes <= end; i += lanes) quantize_step<Code, kStochastic>(d, args, i, *scale, inverse);
    for (; i < end; i++) quantize_step<Code, kStochastic>(One(), args, i, *scale, inverse);
  }
}

template <class Code, class D>
HWY_INLINE void dequantize_step(D d, const DequantizeArgs& args, uint64_t at, float scale) {
  auto v = hn::Mul(Code::decode(d, args.codes + at), hn::Set(d, scale));
  if (args.add) v = hn::Add(hn::LoadU(d, args.values + at), v);
  hn::StoreU(canonical(d, v), d, args.values + at);
}

template <class Code>
void dequantize_all(const DequantizeArgs& given) {
  const DequantizeArgs args = given;
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  const float* scale = args.scales;
  for (uint64_t begin = 0; begin < args.count; begin += args.block, scale++) {
    const uint64_t end = std::min(begin + args.block, args.count);
    uint64_t i = begin;
    for (; i + lanes <= end; i += lanes) dequantize_step<Code>(d, args, i, *scale);
    for (; i < end; i++) dequantize_step<Code>(One(), args, i, *scale);
  }
}

// Returns the mean of magnitudes, as the sum of 16 partial sums.
float mean_magnitude(const float* values, uint64_t count) {
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  std::array<float, 16> partial{};
  const uint64_t whole_count = count / 16 * 16;
  for (size_t part = 0; part < 16; part += lanes) {
    auto sum = hn::Zero(d);
    for (uint64_t i = part; i < whole_count; i += 16) sum = hn::Add(sum, hn::Abs(hn::LoadU(d, values + i)));
    hn::StoreU(sum, d, partial.data() + part);
  }
  for (uint64_t i = whole_count; i < count; i++) partial[i - whole_count] += std::fabs(values[i]);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; i++) partial[i] += partial[i + half];
  }
  return partial[0] / static_cast<float>(count);
}

using Eight = hn::CappedTag<float, 8>;

// Returns the byte with the signs of 8 values; with residual the decoded values are subtracted from them.
HWY_INLINE uint8_t signs_of(float* values, float scale, bool residual) {
  const Eight d;
  const size_t lanes = hn::Lanes(d);
  uint32_t bits = 0;
  for (size_t i = 0; i < 8; i += lanes) {
    uint8_t some[8] = {};
    const auto old = hn::LoadU(d, values + i);
    const auto negative = hn::Lt(old, hn::Zero(d));
    hn::StoreMaskBits(d, negative, some);
    bits |= (some[0] & ((1u << lanes) - 1)) << i;
    if (!residual) continue;
    hn::StoreU(hn::Sub(old, hn::IfThenElse(negative, hn::Set(d, -scale), hn::Set(d, scale))), d, values + i);
  }
  return static_cast<uint8_t>(bits);
}

// Combines 8 values with scale or -scale, by sign: adds, subtracts or replaces.
template <class Combine>
HWY_INLINE void with_signs(uint8_t bits, float scale, float* values, Combine&& combine) {
  const Eight d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < 8; i += lanes) {
    const uint8_t some[8] = {static_cast<uint8_t>(bits >> i)};
    const auto negative = hn::LoadMaskBits(d, some);
    const auto v = hn::IfThenElse(negative, hn::Set(d, -scale), hn::Set(d, scale));
    hn::StoreU(combine(d, hn::LoadU(d, values + i), v), d, values + i);
  }
}

// Works on 8 values, or on a padded copy of fewer values at the end.
template <class Work>
HWY_INLINE void eight_of(float* values, uint64_t left, Work&& work) {
  if (left >= 8) return work(values);
  std::array<float, 8> few{};
  std::copy_n(values, left, few.begin());
  work(few.data());
  std::copy_n(few.begin(), left, values);
}

void quantize_signs(const QuantizeArgs& args) {
  float* scale = args.scales;
  for (uint64_t begin = 0; begin < args.count; begin += args.block, scale++) {
    const uint64_t end = std::min(begin + args.block, args.count);
    float mean = mean_magnitude(args.values + begin, end - begin);
    // This detects infinite and NaN values, because magnitudes do not cancel out.
    const bool lose = !(mean < std::numeric_limits<float>::infinity());
    if (lose) mean = std::bit_cast<float>(kNanBits32);
    // A mean is at most the largest magnitude, except for rounding.
    if (mean < 2 * kSmallest &&
        std::bit_cast<float>(largest_bits(args.values + begin, end - begin)) < kSmallest) {
      mean = 0;
    }
    *scale = mean;
    const bool residual = args.residual && !lose;
    for (uint64_t i = begin; i < end; i += 8) {
      eight_of(args.values + i, end - i,
               [&](float* values) { args.codes[i / 8] = std::byte{signs_of(values, mean, residual)}; });
    }
    if (args.residual && lose) std::fill(args.values + begin, args.values + end, 0.0f);
  }
}

void dequantize_signs(const DequantizeArgs& args) {
  const float* scale = args.scales;
  for (uint64_t begin = 0; begin < args.count; begin += args.block, scale++) {
    const uint64_t end = std::min(begin + args.block, args.count);
    for (uint64_t i = begin; i < end; i += 8) {
      const auto bits = std::to_integer<uint8_t>(args.codes[i / 8]);
      eight_of(args.values + i, end - i, [&](float* values) {
        with_signs(bits, *scale, values,
                   [&](auto d, auto old, auto v) { return canonical(d, args.add ? hn::Add(old, v) : v); });
      });
    }
  }
}

template <class Code>
void quantize_as(const QuantizeArgs& args) {
  (args.stochastic ? quantize_all<Code, true> : quantize_all<Code, false>)(args);
}

}  // namespace

void quantize_blocks(const QuantizeArgs& args) {
  switch (args.code) {
    case BlockCode::kInt8:
      return quantize_as<Int8>(args);
    case BlockCode::kE4m3:
      return quantize_as<E4m3>(args);
    case BlockCode::kE5m2:
      return quantize_as<E5m2>(args);
    case BlockCode::kSign:
      return quantize_signs(args);
  }
}

void dequantize_blocks(const DequantizeArgs& args) {
  switch (args.code) {
    case BlockCode::kInt8:
      return dequantize_all<Int8>(args);
    case BlockCode::kE4m3:
      return dequantize_all<E4m3>(args);
    case BlockCode::kE5m2:
      return dequantize_all<E5m2>(args);
    case BlockCode::kSign:
      return dequantize_signs(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
