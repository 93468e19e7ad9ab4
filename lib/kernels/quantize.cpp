// Encodes values as codes of one byte or one bit, with a scale for each block, and decodes them, for every
// instruction set. Called through host_ops.cpp.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/targets.h"

#include <hwy/cache_control.h>

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
    // The sum's low bits are the whole number nearest to v, even on a tie, and its upper bits are constant.
    const auto shift = hn::Set(d, 0x1.8p23f);
    auto shifted = hn::Add(v, shift);
    if constexpr (kStochastic) {
      // The largest scaled value may exceed 127 by a rounding error, which only rounding up at random can
      // see.
      const auto floor = hn::Floor(hn::Add(v, uniform(d, seed, at)));
      shifted = hn::Add(hn::Max(hn::Min(floor, hn::Set(d, 127.0f)), hn::Set(d, -127.0f)), shift);
    }
    const hn::Rebind<uint8_t, D> d8;
    hn::StoreU(hn::TruncateTo(d8, hn::BitCast(Unsigned<D>(), shifted)), d8, as<uint8_t>(to));
    return hn::Sub(shifted, shift);
  }
  template <class D>
  static HWY_INLINE auto decode(D d, const std::byte* from) {
    const auto codes = hn::LoadU(hn::Rebind<int8_t, D>(), as<int8_t>(from));
    return hn::ConvertTo(d, hn::PromoteTo(Signed<D>(), codes));
  }
};

// fp8 with kMantissa mantissa bits and the exponent bias kBias. The codes of scaled values are whole numbers:
// the upper bits of the f32 with another bias. Divided by kHalfUnit the values are those of f16 whose lower
// mantissa bits are zero, denormal ones included, so processors that convert f16 get codes from these.
template <int kMantissa, int kBias, uint32_t kMostBits>
struct Fp8 {
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << kMantissa;
  static constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  static constexpr float kLargest =
      std::bit_cast<float>((kMostBits + kRebias) << kShift);  // not NaN, not Inf
  static constexpr float kDenormal =
      std::bit_cast<float>(static_cast<uint32_t>(128 - kBias - kMantissa) << 23);
  static constexpr float kHalfUnit = std::bit_cast<float>(static_cast<uint32_t>(127 + 15 - kBias) << 23);

  template <bool kStochastic, class D, class V>
  static HWY_INLINE auto encode(D d, V v, uint32_t seed, uint64_t at, std::byte* to) {
    if constexpr (kConvertsF16 && !kStochastic) {
      return encode_nearest(d, v, to);
    } else {
      return encode_bits<kStochastic>(d, v, seed, at, to);
    }
  }
  // Rounds by adding and subtracting 1.5 * 2^23 times the distance of codes around the value, which is
  // constant below the smallest normal value.
  template <class D, class V>
  static HWY_INLINE auto encode_nearest(D d, V v, std::byte* to) {
    const Unsigned<D> du;
    const auto magnitude = hn::Abs(v);
    const auto power = hn::BitCast(d, hn::And(hn::BitCast(du, v), hn::Set(du, 0x7F800000u)));
    const auto least = hn::Set(d, std::bit_cast<float>(kSmallestNormal));
    const auto shift = hn::Mul(hn::Max(power, least), hn::Set(d, 1.5f * static_cast<float>(1u << kShift)));
    const auto nearest = hn::CopySign(hn::Sub(hn::Add(magnitude, shift), shift), v);
    const auto half = hn::Mul(nearest, hn::Set(d, 1 / kHalfUnit));
    const hn::Rebind<uint16_t, D> d16;
    const auto bits = hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), half));
    auto code = hn::ShiftRight<10 - kMantissa>(bits);
    if constexpr (kMantissa != 2) {
      const auto sign = hn::And(hn::ShiftRight<8>(bits), hn::Set(d16, uint16_t{0x80}));
      code = hn::Or(hn::And(code, hn::Set(d16, uint16_t{0x7F})), sign);
    }
    const hn::Rebind<uint8_t, D> d8;
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(hn::RebindToSigned<decltype(d16)>(), code)), d8, as<uint8_t>(to));
    return nearest;
  }
  template <bool kStochastic, class D, class V>
  static HWY_INLINE auto encode_bits(D d, V v, uint32_t seed, uint64_t at, std::byte* to) {
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
    const auto codes = hn::LoadU(hn::Rebind<uint8_t, D>(), as<uint8_t>(from));
    if constexpr (kConvertsF16) {
      const hn::Rebind<uint16_t, D> d16;
      auto bits = hn::ShiftLeft<8>(hn::PromoteTo(d16, codes));
      if constexpr (kMantissa != 2) {
        const auto sign = hn::And(bits, hn::Set(d16, uint16_t{0x8000}));
        bits = hn::Or(hn::ShiftRight<kMantissa - 2>(hn::Xor(bits, sign)), sign);
      }
      const auto half = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
      return hn::Mul(half, hn::Set(d, kHalfUnit));
    } else {
      const Unsigned<D> du;
      const auto full = hn::PromoteTo(du, codes);
      const auto code = hn::And(full, hn::Set(du, 0x7Fu));
      return value(d, code, hn::ShiftLeft<24>(hn::Sub(full, code)));
    }
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

// Vectors per iteration.
constexpr uint64_t kTogether = 4;

// Returns the values at `at`, after adding the addends to them.
template <bool kAdd, class D>
HWY_INLINE auto load_sum(D d, const QuantizeArgs& args, uint64_t at) {
  auto v = hn::LoadU(d, args.values + at);
  if constexpr (kAdd) {
    v = hn::Add(v, hn::LoadU(d, args.addend + at));
    hn::StoreU(v, d, args.values + at);
  }
  return hn::And(hn::BitCast(Signed<D>(), v), hn::Set(Signed<D>(), 0x7FFFFFFF));
}

template <bool kAdd>
HWY_NOINLINE int32_t largest_of(const QuantizeArgs& args, uint64_t begin, uint64_t end) {
  const Wide d;
  const Signed<Wide> di;
  const size_t lanes = hn::Lanes(d);
  auto most = hn::Zero(di), other = most;
  uint64_t i = begin;
  for (; i + kTogether * lanes <= end; i += kTogether * lanes) {
    most = hn::Max(most, load_sum<kAdd>(d, args, i));
    other = hn::Max(other, load_sum<kAdd>(d, args, i + lanes));
    most = hn::Max(most, load_sum<kAdd>(d, args, i + 2 * lanes));
    other = hn::Max(other, load_sum<kAdd>(d, args, i + 3 * lanes));
  }
  for (; i + lanes <= end; i += lanes) most = hn::Max(most, load_sum<kAdd>(d, args, i));
  int32_t bits = hn::GetLane(hn::MaxOfLanes(di, hn::Max(most, other)));
  for (; i < end; i++) bits = std::max(bits, hn::GetLane(load_sum<kAdd>(One(), args, i)));
  return bits;
}

// Adds the addends to the values [begin, end), if there are any, and returns the bits of the largest
// magnitude as an integer: NaN is larger than Inf.
int32_t largest_bits(const QuantizeArgs& args, uint64_t begin, uint64_t end) {
  return (args.addend != nullptr ? largest_of<true> : largest_of<false>)(args, begin, end);
}

// Where encoding leaves the residual.
enum class Residual : uint8_t { kNowhere, kInValues, kInError };

template <class Code, bool kStochastic, Residual kResidual, class D>
HWY_INLINE void quantize_step(D d, const QuantizeArgs& args, uint64_t at, float scale, float inverse) {
  const auto v = hn::LoadU(d, args.values + at);
  const auto decoded =
      Code::template encode<kStochastic>(d, hn::Mul(v, hn::Set(d, inverse)), args.seed, at, args.codes + at);
  if constexpr (kResidual != Residual::kNowhere) {
    const auto residual = hn::Sub(v, hn::Mul(decoded, hn::Set(d, scale)));
    if constexpr (kResidual == Residual::kInValues) {
      hn::StoreU(residual, d, args.values + at);
    } else {
      const auto more = hn::Mul(residual, hn::Set(d, args.error_scale));
      hn::StoreU(hn::Add(hn::LoadU(d, args.error + at), more), d, args.error + at);
    }
  }
}

// Keeps the residual of values that were not encoded: themselves, or nothing if they are not finite.
void keep_values(const QuantizeArgs& args, uint64_t begin, uint64_t end, bool lose) {
  if (args.error == nullptr) {
    if (lose) std::fill(args.values + begin, args.values + end, 0.0f);
    return;
  }
  for (uint64_t i = begin; i < end && !lose; i++) args.error[i] += args.values[i] * args.error_scale;
}

// Encodes a block that has no usable scale; it decodes to all NaN, or to all zero.
void quantize_nothing(const QuantizeArgs& args, uint64_t begin, uint64_t end, bool lose) {
  std::fill(args.codes + begin, args.codes + end, std::byte{0});
  if (args.residual) keep_values(args, begin, end, lose);
}

template <class Code, bool kStochastic, Residual kResidual>
HWY_INLINE void quantize_block(const QuantizeArgs& args, uint64_t begin, uint64_t end, int32_t bits,
                               float scale, float inverse) {
  if (!(scale > 0)) return quantize_nothing(args, begin, end, bits >= kInfinity);
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  uint64_t i = begin;
  for (; i + kTogether * lanes <= end; i += kTogether * lanes) {
    quantize_step<Code, kStochastic, kResidual>(d, args, i, scale, inverse);
    quantize_step<Code, kStochastic, kResidual>(d, args, i + lanes, scale, inverse);
    quantize_step<Code, kStochastic, kResidual>(d, args, i + 2 * lanes, scale, inverse);
    quantize_step<Code, kStochastic, kResidual>(d, args, i + 3 * lanes, scale, inverse);
  }
  for (; i + lanes <= end; i += lanes)
    quantize_step<Code, kStochastic, kResidual>(d, args, i, scale, inverse);
  for (; i < end; i++) quantize_step<Code, kStochastic, kResidual>(One(), args, i, scale, inverse);
}

// Prefetches the values of a later block, and its addends.
HWY_INLINE void prefetch(const QuantizeArgs& args, uint64_t begin) {
  constexpr uint64_t kLine = 64 / sizeof(float);
  if (args.addend == nullptr || begin + args.block > args.count) return;
  for (uint64_t i = begin; i < begin + args.block; i += kLine) {
    hwy::Prefetch(args.values + i);
    hwy::Prefetch(args.addend + i);
  }
}

// Works on a few blocks at a time, so that the divisions of their scales overlap, and so that the values are
// in the L1 cache when they are encoded.
template <class Code, bool kStochastic, Residual kResidual>
HWY_NOINLINE void quantize_all(const QuantizeArgs& given) {
  constexpr uint64_t kBlocks = 8;
  const QuantizeArgs args = given;
  const uint64_t blocks = (args.count + args.block - 1) / args.block;
  for (uint64_t first = 0; first < blocks; first += kBlocks) {
    const uint64_t some = std::min(kBlocks, blocks - first);
    const auto begin = [&](uint64_t b) { return std::min((first + b) * args.block, args.count); };
    std::array<int32_t, kBlocks> bits;
    std::array<float, kBlocks> inverses;
    for (uint64_t b = 0; b < some; b++) bits[b] = largest_bits(args, begin(b), begin(b + 1));
    for (uint64_t b = 0; b < some; b++) {
      float scale = 0;
      if (bits[b] >= kInfinity) scale = std::bit_cast<float>(kNanBits32);
      const auto largest = std::bit_cast<float>(bits[b]);
      if (bits[b] < kInfinity && largest >= kSmallest) scale = largest / Code::kLargest;
      args.scales[first + b] = scale;
      inverses[b] = 1 / scale;
    }
    for (uint64_t b = 0; b < some; b++) {
      prefetch(args, begin(b) + kBlocks * args.block);
      quantize_block<Code, kStochastic, kResidual>(args, begin(b), begin(b + 1), bits[b],
                                                   args.scales[first + b], inverses[b]);
    }
  }
}

// Returns where an input's scales or codes are.
template <class T>
HWY_INLINE const T* of_input(const DequantizeArgs& args, const T* first, uint64_t input) {
  return as<T>(as<std::byte>(first) + input * args.stride_bytes);
}

template <class Code, bool kOne, class D>
HWY_INLINE void dequantize_step(D d, const DequantizeArgs& args, uint64_t at, uint64_t block) {
  auto v = hn::Mul(Code::decode(d, args.codes + at), hn::Set(d, args.scales[block]));
  if constexpr (!kOne) {
    for (uint64_t k = 1; k < args.inputs; k++) {
      const auto more = Code::decode(d, of_input(args, args.codes, k) + at);
      v = hn::Add(v, hn::Mul(more, hn::Set(d, of_input(args, args.scales, k)[block])));
    }
    v = hn::Mul(v, hn::Set(d, args.postscale));
  }
  hn::StoreU(canonical(d, v), d, args.values + at);
}

template <class Code, bool kOne>
HWY_NOINLINE void dequantize_all(const DequantizeArgs& given) {
  const DequantizeArgs args = given;
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  uint64_t block = 0;
  for (uint64_t begin = 0; begin < args.count; begin += args.block, block++) {
    const uint64_t end = std::min(begin + args.block, args.count);
    uint64_t i = begin;
    for (; i + kTogether * lanes <= end; i += kTogether * lanes) {
      dequantize_step<Code, kOne>(d, args, i, block);
      dequantize_step<Code, kOne>(d, args, i + lanes, block);
      dequantize_step<Code, kOne>(d, args, i + 2 * lanes, block);
      dequantize_step<Code, kOne>(d, args, i + 3 * lanes, block);
    }
    for (; i + lanes <= end; i += lanes) dequantize_step<Code, kOne>(d, args, i, block);
    for (; i < end; i++) dequantize_step<Code, kOne>(One(), args, i, block);
  }
}

template <class Code>
void dequantize_as(const DequantizeArgs& args) {
  const bool one = args.inputs == 1 && args.postscale == 1;
  (one ? dequantize_all<Code, true> : dequantize_all<Code, false>)(args);
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

// Adds scale * src to dst.
void add_scaled(const float* src, float scale, uint64_t count, float* dst) {
  const Wide d;
  const size_t lanes = hn::Lanes(d);
  uint64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto more = hn::Mul(hn::LoadU(d, src + i), hn::Set(d, scale));
    hn::StoreU(hn::Add(hn::LoadU(d, dst + i), more), d, dst + i);
  }
  for (; i < count; i++) dst[i] += src[i] * scale;
}

void quantize_signs(const QuantizeArgs& args) {
  float* scale = args.scales;
  for (uint64_t begin = 0; begin < args.count; begin += args.block, scale++) {
    const uint64_t end = std::min(begin + args.block, args.count);
    const int32_t largest = largest_bits(args, begin, end);  // adds the addends
    float mean = mean_magnitude(args.values + begin, end - begin);
    // This detects infinite and NaN values, because magnitudes do not cancel out.
    const bool lose = !(mean < std::numeric_limits<float>::infinity());
    if (lose) mean = std::bit_cast<float>(kNanBits32);
    // A mean is at most the largest magnitude, except for rounding.
    if (mean < 2 * kSmallest && std::bit_cast<float>(largest) < kSmallest) mean = 0;
    *scale = mean;
    const bool residual = args.residual && !lose;
    for (uint64_t i = begin; i < end; i += 8) {
      eight_of(args.values + i, end - i,
               [&](float* values) { args.codes[i / 8] = std::byte{signs_of(values, mean, residual)}; });
    }
    if (args.residual && lose) std::fill(args.values + begin, args.values + end, 0.0f);
    if (args.error != nullptr) {
      add_scaled(args.values + begin, args.error_scale, end - begin, args.error + begin);
    }
  }
}

void dequantize_signs(const DequantizeArgs& args) {
  uint64_t block = 0;
  for (uint64_t begin = 0; begin < args.count; begin += args.block, block++) {
    const uint64_t end = std::min(begin + args.block, args.count);
    for (uint64_t i = begin; i < end; i += 8) {
      eight_of(args.values + i, end - i, [&](float* values) {
        for (uint64_t k = 0; k < args.inputs; k++) {
          const auto bits = std::to_integer<uint8_t>(of_input(args, args.codes, k)[i / 8]);
          const float postscale = k + 1 == args.inputs ? args.postscale : 1;
          with_signs(bits, of_input(args, args.scales, k)[block], values, [&](auto d, auto old, auto v) {
            return canonical(d, hn::Mul(k > 0 ? hn::Add(old, v) : v, hn::Set(d, postscale)));
          });
        }
      });
    }
  }
}

template <class Code, Residual kResidual>
void quantize_leaving(const QuantizeArgs& args) {
  (args.stochastic ? quantize_all<Code, true, kResidual> : quantize_all<Code, false, kResidual>)(args);
}

template <class Code>
void quantize_as(const QuantizeArgs& args) {
  if (!args.residual) return quantize_leaving<Code, Residual::kNowhere>(args);
  if (args.error == nullptr) return quantize_leaving<Code, Residual::kInValues>(args);
  quantize_leaving<Code, Residual::kInError>(args);
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
      return dequantize_as<Int8>(args);
    case BlockCode::kE4m3:
      return dequantize_as<E4m3>(args);
    case BlockCode::kE5m2:
      return dequantize_as<E5m2>(args);
    case BlockCode::kSign:
      return dequantize_signs(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
