// Sums of squares, in f64, for every instruction set: for norms of gradients. Called through host_ops.cpp. A
// sum is that of 8 partial ones, whatever the width of vectors.
#include <array>
#include <cmath>

#include "kernels/targets.h"

// Compile this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/squares.cpp"
#include <hwy/foreach_target.h>

#include "kernels/elements-inl.h"
#include "kernels/per_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kPartial = 8;

// Elements as f64.
template <class E, class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const std::byte* from) {
  if constexpr (sizeof(typename E::Stored) == 2) {
    return hn::PromoteTo(d, E::load(hn::Rebind<float, D>(), from));
  } else {
    return E::load(d, from);
  }
}

template <class E>
double sum_of_squares(const SquaresArgs& args) {
  constexpr uint64_t kSize = sizeof(typename E::Stored);
  const hn::CappedTag<double, kPartial> d;
  constexpr size_t kLanes = hn::MaxLanes(hn::CappedTag<double, kPartial>());
  constexpr size_t kVectors = kPartial / kLanes;
  decltype(hn::Zero(d)) sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  const uint64_t whole = args.count / kPartial * kPartial;
  for (uint64_t i = 0; i < whole; i += kPartial) {
    for (size_t v = 0; v < kVectors; v++) {
      const auto values = load_wide<E>(d, args.src + (i + v * kLanes) * kSize);
      sums[v] = hn::Add(sums[v], hn::Mul(values, values));
    }
  }
  std::array<double, kPartial> partial{};
  for (size_t v = 0; v < kVectors; v++) hn::StoreU(sums[v], d, partial.data() + v * kLanes);
  const hn::CappedTag<double, 1> one;
  for (uint64_t i = whole; i < args.count; i++) {
    const double value = hn::GetLane(load_wide<E>(one, args.src + i * kSize));
    partial[i - whole] += value * value;
  }
  return ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
         ((partial[1] + partial[5]) + (partial[3] + partial[7]));
}

}  // namespace

Squares squares_of(const SquaresArgs& args) {
  Squares out;
  switch (args.dtype) {
    case Dtype::kF16:
      out.sum = sum_of_squares<F16>(args);
      break;
    case Dtype::kBf16:
      out.sum = sum_of_squares<Bf16>(args);
      break;
    case Dtype::kF32:
      out.sum = sum_of_squares<F32>(args);
      break;
    default:
      out.sum = sum_of_squares<F64>(args);
  }
  out.finite = std::isfinite(out.sum);
  if (out.finite || args.dtype != Dtype::kF64) return out;
  // Squares of large numbers overflow.
  const auto* const values = reinterpret_cast<const double*>(args.src);
  out.finite = true;
  for (uint64_t i = 0; i < args.count; i++) out.finite = out.finite && std::isfinite(values[i]);
  return out;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
