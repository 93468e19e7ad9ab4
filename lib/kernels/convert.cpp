// Converts between floating-point types, with a scale and with or without adding to the destination, for
// every instruction set. Called through host_ops.cpp.
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/targets.h"

// Compile this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convert.cpp"
#include <hwy/foreach_target.h>

#include "kernels/elements-inl.h"
#include "kernels/per_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

// Converts sizeof...(k) vectors that start at element `at`, and loads all of them before storing any.
template <class From, class To, bool kAdd, class D, class V, size_t... k>
HWY_INLINE void convert_step(D d, const CopyArgs& args, uint64_t at, V scale, std::index_sequence<k...>) {
  const size_t lanes = hn::Lanes(d);
  const std::byte* src = args.src + at * sizeof(typename From::Stored);
  std::byte* dst = args.dst + at * sizeof(typename To::Stored);
  V values[] = {hn::Mul(From::load(d, src + k * lanes * sizeof(typename From::Stored)), scale)...};
  if constexpr (kAdd) {
    ((values[k] = hn::Add(To::load(d, dst + k * lanes * sizeof(typename To::Stored)), values[k])), ...);
  }
  const decltype(To::pack(d, scale)) results[] = {To::pack(d, values[k])...};
  (To::store(d, results[k], dst + k * lanes * sizeof(typename To::Stored)), ...);
}

template <class From, class To, bool kAdd>
HWY_NOINLINE void convert_all(const CopyArgs& given) {
  using Math = std::conditional_t<sizeof(typename From::Math) == 8, double, typename To::Math>;
  const CopyArgs args = given;  // a local copy, which stores through byte pointers cannot change
  const hn::ScalableTag<Math> d;
  const hn::CappedTag<Math, 1> one;
  const auto scale = static_cast<Math>(args.scale);
  const auto scales = hn::Set(d, scale);

  const size_t lanes = hn::Lanes(d);
  uint64_t at = 0;
  for (; args.count - at >= 4 * lanes; at += 4 * lanes) {
    convert_step<From, To, kAdd>(d, args, at, scales, std::make_index_sequence<4>());
  }
  for (; args.count - at >= lanes; at += lanes) {
    convert_step<From, To, kAdd>(d, args, at, scales, std::make_index_sequence<1>());
  }
  for (; at < args.count; at++) {
    convert_step<From, To, kAdd>(one, args, at, hn::Set(one, scale), std::make_index_sequence<1>());
  }
}

// Converts f64 from and to 16 bits: rare, hence one by one.
template <uint16_t (*kRound)(float)>
void narrow_f64(const CopyArgs& args) {
  for (uint64_t i = 0; i < args.count; i++) {
    double value;
    std::memcpy(&value, args.src + i * sizeof value, sizeof value);
    const uint16_t half = kRound(f32_odd_from_f64(value * args.scale));
    std::memcpy(args.dst + i * sizeof half, &half, sizeof half);
  }
}
template <float (*kWiden)(uint16_t)>
void widen_to_f64(const CopyArgs& args) {
  for (uint64_t i = 0; i < args.count; i++) {
    uint16_t half;
    std::memcpy(&half, args.src + i * sizeof half, sizeof half);
    double value = double{kWiden(half)} * args.scale;
    if (std::isnan(value)) value = std::bit_cast<double>(kNanBits64);
    std::memcpy(args.dst + i * sizeof value, &value, sizeof value);
  }
}

template <class From, bool kAdd = false>
ConvertFunction convert_from(Dtype dst) {
  switch (dst) {
    case Dtype::kF16:
      return convert_all<From, F16, kAdd>;
    case Dtype::kBf16:
      return convert_all<From, Bf16, kAdd>;
    default:
      return convert_all<From, F32, kAdd>;
  }
}

ConvertFunction convert_from_f64(Dtype dst) {
  switch (dst) {
    case Dtype::kF16:
      return narrow_f64<f16_from_f32>;
    case Dtype::kBf16:
      return narrow_f64<bf16_from_f32>;
    case Dtype::kF32:
      return convert_all<F64, F32, false>;
    default:
      return convert_all<F64, F64, false>;
  }
}

}  // namespace

void convert(const CopyArgs& args) {
  const bool to_f64 = args.dst_dtype == Dtype::kF64;
  switch (args.src_dtype) {
    case Dtype::kF16:
      return (to_f64 ? widen_to_f64<f32_from_f16> : convert_from<F16>(args.dst_dtype))(args);
    case Dtype::kBf16:
      return (to_f64 ? widen_to_f64<f32_from_bf16> : convert_from<Bf16>(args.dst_dtype))(args);
    case Dtype::kF32:
      return (to_f64 ? convert_all<F32, F64, false> : convert_from<F32>(args.dst_dtype))(args);
    default:
      return convert_from_f64(args.dst_dtype)(args);
  }
}

void convert_add(const CopyArgs& args) {
  switch (args.src_dtype) {
    case Dtype::kF16:
      return convert_from<F16, true>(args.dst_dtype)(args);
    case Dtype::kBf16:
      return convert_from<Bf16, true>(args.dst_dtype)(args);
    case Dtype::kF32:
      return convert_from<F32, true>(args.dst_dtype)(args);
    default:
      return convert_all<F64, F64, true>(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
