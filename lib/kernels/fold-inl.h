// Folds inputs in order in one loop: every input is loaded once, the accumulators stay in registers, and
// every output is stored once. Compiled once for each instruction set; included by fold_float.cpp and
// fold_integer.cpp.
#if defined(WEFT_KERNELS_FOLD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_FOLD_INL_H
#undef WEFT_KERNELS_FOLD_INL_H
#else
#define WEFT_KERNELS_FOLD_INL_H
#endif

#include "kernels/targets.h"  // before Highway

#include <hwy/cache_control.h>

#include <algorithm>
#include <utility>

#include "device/device.h"
#include "kernels/elements-inl.h"
#include "kernels/per_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

struct Sum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Add(a, b);
  }
};

template <class Op, class V>
HWY_INLINE V combine(V a, V b) {
  return Op::apply(a, b);
}
template <class Op, class V>
HWY_INLINE Pair<V> combine(Pair<V> a, Pair<V> b) {
  return {Op::apply(a.even, b.even), Op::apply(a.odd, b.odd)};
}

template <bool kScaled, class V>
HWY_INLINE V scaled(V v, V by) {
  if constexpr (kScaled) return hn::Mul(v, by);
  (void)by;
  return v;
}
template <bool kScaled, class V>
HWY_INLINE Pair<V> scaled(Pair<V> v, V by) {
  return {scaled<kScaled>(v.even, by), scaled<kScaled>(v.odd, by)};
}

// The addresses of kCount inputs or outputs, in registers. With kCount 0 their number is arbitrary, and they
// stay in the caller's array.
template <class Pointer, int kCount>
struct Addresses {
  Pointer values[kCount];
  Addresses(const Pointer* from, int) { std::copy_n(from, kCount, values); }
  static constexpr int count() { return kCount; }
};
template <class Pointer>
struct Addresses<Pointer, 0> {
  const Pointer* values;
  const int number;
  Addresses(const Pointer* from, int count) : values(from), number(count) {}
  int count() const { return number; }
};

// Folds sizeof...(k) vectors that start `at` bytes behind the beginning. Loads everything before it stores
// anything, because an output may be an input. All folds of floats and of bits store here and nowhere else.
// kStreaming: the stores bypass the caches, and outputs are aligned to vectors.
template <class E, class Op, bool kScaled, bool kStreaming = false, class D, class V, class Inputs,
          class Outputs, size_t... k>
HWY_INLINE void fold_step(D d, const Inputs& inputs, const Outputs& outputs, uint64_t at, V pre, V post,
                          std::index_sequence<k...>) {
  const size_t stride = E::bytes(d);
  const std::byte* in = inputs.values[0] + at;
  decltype(E::load(d, in)) sums[] = {scaled<kScaled>(E::load(d, in + k * stride), pre)...};
  for (int j = 1; j < inputs.count(); j++) {
    in = inputs.values[j] + at;
    ((sums[k] = combine<Op>(sums[k], scaled<kScaled>(E::load(d, in + k * stride), pre))), ...);
  }
  const decltype(E::pack(d, sums[0])) results[] = {E::pack(d, scaled<kScaled>(sums[k], post))...};
  for (int j = 0; j < outputs.count(); j++) {
    std::byte* out = outputs.values[j] + at;
    if constexpr (kStreaming) {
      (E::stream(d, results[k], out + k * stride), ...);
    } else {
      (E::store(d, results[k], out + k * stride), ...);
    }
  }
}

// Folds the bytes from `at` to `end`, vector by vector and then element by element: the rest of the unrolled
// loops. One function handles any number of inputs and outputs, because compiling it for each number takes
// long.
template <class E, class Op, bool kScaled>
HWY_NOINLINE void fold_rest(const FoldArgs& args, uint64_t at, uint64_t end) {
  using Math = typename E::Math;
  using Single = typename E::Single;
  const Addresses<const std::byte*, 0> inputs(args.inputs, args.input_count);
  const Addresses<std::byte*, 0> outputs(args.outputs, args.output_count);
  const auto pre = static_cast<Math>(args.prescale);
  const auto post = static_cast<Math>(args.postscale);
  const hn::ScalableTag<Math> d;
  const hn::CappedTag<Math, 1> one;
  for (const size_t vector = E::bytes(d); end - at >= vector; at += vector) {
    fold_step<E, Op, kScaled>(d, inputs, outputs, at, hn::Set(d, pre), hn::Set(d, post),
                              std::make_index_sequence<1>());
  }
  for (; at < end; at += sizeof(typename E::Stored)) {
    fold_step<Single, Op, kScaled>(one, inputs, outputs, at, hn::Set(one, pre), hn::Set(one, post),
                                   std::make_index_sequence<1>());
  }
}

// Memory from malloc is usually 16 bytes behind the beginning of a cache line, equally for all buffers. From
// this size on, whole vectors begin where the first output is aligned.
inline constexpr uint64_t kWorthAligning = 8192;

// True if stores may bypass the caches: all outputs are then aligned where the first one is.
inline bool streams(const FoldArgs& args) {
  constexpr uintptr_t kWidest = 64;
  const auto place = [&](int j) { return reinterpret_cast<uintptr_t>(args.outputs[j]) % kWidest; };
  bool alike = true;
  for (int j = 1; j < args.output_count; j++) alike &= place(j) == place(0);
  return args.streaming && alike && args.count * dtype_size(args.dtype) >= kWorthAligning;
}

// kInputs and kOutputs are the numbers of inputs and outputs; 0: any number.
template <class E, class Op, bool kScaled, int kInputs = 0, int kOutputs = 0, bool kStreaming = false>
HWY_NOINLINE void fold_all(const FoldArgs& args) {
  using Math = typename E::Math;
  const Addresses<const std::byte*, kInputs> inputs(args.inputs, args.input_count);
  const Addresses<std::byte*, kOutputs> outputs(args.outputs, args.output_count);
  const hn::ScalableTag<Math> d;
  const auto pre = hn::Set(d, static_cast<Math>(args.prescale));
  const auto post = hn::Set(d, static_cast<Math>(args.postscale));

  const uint64_t end = args.count * sizeof(typename E::Stored);
  const size_t vector = E::bytes(d);
  uint64_t at = 0;
  if (end >= kWorthAligning) {
    at = -reinterpret_cast<uintptr_t>(outputs.values[0]) % vector;
    if (at != 0) fold_rest<E, Op, kScaled>(args, 0, at);
  }
  for (; end - at >= 4 * vector; at += 4 * vector) {
    fold_step<E, Op, kScaled, kStreaming>(d, inputs, outputs, at, pre, post, std::make_index_sequence<4>());
  }
  if constexpr (kStreaming) hwy::FlushStream();
  if (at != end) fold_rest<E, Op, kScaled>(args, at, end);
}

// Sums of few inputs into one or two outputs have loops of their own. More inputs use the general loop.
// Processing 2-16 KiB of a few inputs at a time, or prefetching that way, was slower or no faster up to 16
// inputs.
template <class E, bool kScaled, int kInputs>
FoldFunction sum_into(int outputs) {
  if (outputs == 1) return fold_all<E, Sum, kScaled, kInputs, 1>;
  if (outputs == 2) return fold_all<E, Sum, kScaled, kInputs, 2>;
  return fold_all<E, Sum, kScaled>;
}
template <class E, bool kScaled>
FoldFunction sum_of(int inputs, int outputs) {
#if WEFT_KERNELS_SPECIAL
  if (inputs == 2) return sum_into<E, kScaled, 2>(outputs);
  if (inputs == 3) return sum_into<E, kScaled, 3>(outputs);
  if (inputs == 4) return sum_into<E, kScaled, 4>(outputs);
#else
  (void)inputs, (void)outputs;
#endif
  return fold_all<E, Sum, kScaled>;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif
