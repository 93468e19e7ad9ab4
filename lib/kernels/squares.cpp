// Sums of squares in f64, for every instruction set: for norms of gradients. Called through host_ops.cpp.
// Ranges of values and their partial sums are those of a GPU's threads (kernels/cuda/squares.h), for every
// vector width.
#include <algorithm>
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

constexpr size_t kPartial = kSquaresPartial;

// Adds up all values, halves onto halves.
template <size_t kCount>
double total(std::array<double, kCount>& partial) {
  for (size_t half = kCount / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; i++) partial[i] += partial[i + half];
  }
  return partial[0];
}

// Loads elements as f64.
template <class E, class D>
HWY_INLINE hn::Vec<D> load_wide(D d, const std::byte* from) {
  if constexpr (sizeof(typename E::Stored) == 2) {
    return hn::PromoteTo(d, E::load(hn::Rebind<float, D>(), from));
  } else {
    return E::load(d, from);
  }
}

template <class E>
double sum_of_range(const std::byte* src, uint64_t count) {
  constexpr uint64_t kSize = sizeof(typename E::Stored);
  const hn::CappedTag<double, kPartial> d;
  constexpr size_t kLanes = hn::MaxLanes(hn::CappedTag<double, kPartial>());
  constexpr size_t kVectors = kPartial / kLanes;
  decltype(hn::Zero(d)) sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  const uint64_t whole = count / kPartial * kPartial;
  for (uint64_t i = 0; i < whole; i += kPartial) {
    for (size_t v = 0; v < kVectors; v++) {
      const auto values = load_wide<E>(d, src + (i + v * kLanes) * kSize);
      sums[v] = hn::Add(sums[v], hn::Mul(values, values));
    }
  }
  std::array<double, kPartial> partial{};
  for (size_t v = 0; v < kVectors; v++) hn::StoreU(sums[v], d, partial.data() + v * kLanes);
  const hn::CappedTag<double, 1> one;
  for (uint64_t i = whole; i < count; i++) {
    const double value = hn::GetLane(load_wide<E>(one, src + i * kSize));
    partial[i - whole] += value * value;
  }
  return total(partial);
}

template <class E>
double sum_of_squares(const SquaresArgs& args) {
  if (args.count <= kSquaresRange) return sum_of_range<E>(args.src, args.count);
  std::array<double, kSquaresTotals> totals{};
  uint64_t range = 0;
  for (uint64_t begin = 0; begin < args.count; begin += kSquaresRange, range++) {
    totals[range % kSquaresTotals] += sum_of_range<E>(args.src + begin * sizeof(typename E::Stored),
                                                      std::min(kSquaresRange, args.count - begin));
  }
  return total(totals);
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
  // The sum may have overflowed: squares of large numbers do.
  const auto* const values = reinterpret_cast<const double*>(args.src);
  out.finite = true;
  for (uint64_t i = 0; i < args.count; i++) out.finite = out.finite && std::isfinite(values[i]);
  return out;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
