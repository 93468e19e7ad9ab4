// The fold over inputs, in order, as one loop: every input is loaded once, the accumulators stay in
// registers, every output is stored once. Compiled once for each instruction set; included by fold_float.cpp
// and fold_integer.cpp.
#if defined(WEFT_KERNELS_FOLD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_FOLD_INL_H
#undef WEFT_KERNELS_FOLD_INL_H
#else
#define WEFT_KERNELS_FOLD_INL_H
#endif

#include <utility>

#include "core/device.h"
#include "kernels/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

struct Sum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Add(a, b);
  }
};

template <class E, bool kScaled, class D, class V = hn::Vec<D>>
HWY_INLINE V load_input(D d, const std::byte* from, V prescale) {
  const V v = E::load(d, from);
  if constexpr (kScaled) return hn::Mul(v, prescale);
  (void)prescale;
  return v;
}

template <class E, bool kScaled, class D, class V = hn::Vec<D>>
HWY_INLINE auto pack_result(D d, V v, V postscale) {
  if constexpr (kScaled) return E::pack(d, hn::Mul(v, postscale));
  (void)postscale;
  return E::pack(d, v);
}

// Fold sizeof...(k) vectors that start `at` bytes behind the beginning. Everything is loaded before anything
// is stored, since an output may be an input. The stores here are the only ones of all folds: a policy of
// non-temporal stores would be a template parameter of this function.
template <class E, class Op, bool kScaled, class D, class V, size_t... k>
HWY_INLINE void fold_step(D d, const FoldArgs& args, uint64_t at, V pre, V post, std::index_sequence<k...>) {
  const size_t stride = hn::Lanes(d) * sizeof(typename E::Stored);
  const std::byte* in = args.inputs[0] + at;
  V sums[] = {load_input<E, kScaled>(d, in + k * stride, pre)...};
  for (int j = 1; j < args.input_count; j++) {
    in = args.inputs[j] + at;
    ((sums[k] = Op::apply(sums[k], load_input<E, kScaled>(d, in + k * stride, pre))), ...);
  }
  const decltype(E::pack(d, pre)) results[] = {pack_result<E, kScaled>(d, sums[k], post)...};
  for (int j = 0; j < args.output_count; j++) {
    std::byte* out = args.outputs[j] + at;
    (E::store(d, results[k], out + k * stride), ...);
  }
}

template <class E, class Op, bool kScaled>
HWY_NOINLINE void fold_all(const FoldArgs& given) {
  using Math = typename E::Math;
  constexpr size_t kSize = sizeof(typename E::Stored);
  const FoldArgs args = given;  // a local one, which stores through byte pointers cannot change
  const hn::ScalableTag<Math> d;
  const hn::CappedTag<Math, 1> one;
  const auto pre = static_cast<Math>(args.prescale);
  const auto post = static_cast<Math>(args.postscale);
  const auto pres = hn::Set(d, pre);
  const auto posts = hn::Set(d, post);

  const uint64_t end = args.count * kSize;
  const size_t vector = hn::Lanes(d) * kSize;
  uint64_t at = 0;
  for (; end - at >= 4 * vector; at += 4 * vector) {
    fold_step<E, Op, kScaled>(d, args, at, pres, posts, std::make_index_sequence<4>());
  }
  for (; end - at >= vector; at += vector) {
    fold_step<E, Op, kScaled>(d, args, at, pres, posts, std::make_index_sequence<1>());
  }
  for (; at < end; at += kSize) {
    fold_step<E, Op, kScaled>(one, args, at, hn::Set(one, pre), hn::Set(one, post),
                              std::make_index_sequence<1>());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif
