// The body of weft_fold. Its host counterparts are lib/kernels/fold_float.cpp and fold_integer.cpp.
#pragma once

#include "kernels/cuda/elements.h"

namespace weft::cuda {

struct Sum {
  template <class T>
  static WEFT_KERNEL_CODE T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};
// Multiplies unsigned integers in 64 bits, so that nothing overflows.
struct Product {
  template <class T>
  static WEFT_KERNEL_CODE T apply(T a, T b) {
    if constexpr (Plain<T>::kFloat) return a * b;
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
};
// Returns the earlier of equal values; a NaN wins and stays.
struct Minimum {
  template <class T>
  static WEFT_KERNEL_CODE T apply(T a, T b) {
    return b < a || b != b ? b : a;
  }
};
struct Maximum {
  template <class T>
  static WEFT_KERNEL_CODE T apply(T a, T b) {
    return a < b || b != b ? b : a;
  }
};
struct BitAnd {
  template <class T>
  static WEFT_KERNEL_CODE T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct BitOr {
  template <class T>
  static WEFT_KERNEL_CODE T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct BitXor {
  template <class T>
  static WEFT_KERNEL_CODE T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// Each thread folds elements of its block's range, with the accumulator in registers. kScaled: multiplies by
// the scales, even if they are 1.
template <class E, class Op, bool kScaled>
WEFT_KERNEL_CODE void fold_range(const Place& place, const FoldKernelArgs& args) {
  using S = typename E::Stored;
  using M = typename E::Math;
  const uint64_t begin = uint64_t{place.block} * kFoldElementsPerBlock;
  const uint64_t end =
      begin + kFoldElementsPerBlock < args.count ? begin + kFoldElementsPerBlock : args.count;
  const auto pre = static_cast<M>(args.prescale);
  const auto post = static_cast<M>(args.postscale);
  for (uint64_t i = begin + place.thread; i < end; i += place.threads) {
    M sum = E::load(reinterpret_cast<const S*>(args.inputs[0])[i]);
    if constexpr (kScaled) sum = sum * pre;
    for (int k = 1; k < args.input_count; k++) {
      M next = E::load(reinterpret_cast<const S*>(args.inputs[k])[i]);
      if constexpr (kScaled) next = next * pre;
      sum = Op::apply(sum, next);
    }
    if constexpr (kScaled) sum = sum * post;
    const S out = E::pack(sum);
    for (int k = 0; k < args.output_count; k++) reinterpret_cast<S*>(args.outputs[k])[i] = out;
  }
}

template <class E>
WEFT_KERNEL_CODE void fold_floats(const Place& place, const FoldKernelArgs& args) {
  switch (args.op) {
    case kProd:
      return fold_range<E, Product, true>(place, args);
    case kMin:
      return fold_range<E, Minimum, true>(place, args);
    case kMax:
      return fold_range<E, Maximum, true>(place, args);
    default:
      return fold_range<E, Sum, true>(place, args);
  }
}

// Signed integers differ from unsigned ones only in minimum and maximum.
template <class T, class Unsigned>
WEFT_KERNEL_CODE void fold_integers(const Place& place, const FoldKernelArgs& args) {
  using E = Plain<Unsigned>;
  switch (args.op) {
    case kProd:
      return fold_range<E, Product, false>(place, args);
    case kMin:
      return fold_range<Plain<T>, Minimum, false>(place, args);
    case kMax:
      return fold_range<Plain<T>, Maximum, false>(place, args);
    case kBand:
      return fold_range<E, BitAnd, false>(place, args);
    case kBor:
      return fold_range<E, BitOr, false>(place, args);
    case kBxor:
      return fold_range<E, BitXor, false>(place, args);
    default:
      return fold_range<E, Sum, false>(place, args);
  }
}

WEFT_KERNEL_CODE void fold(const Place& place, const FoldKernelArgs& args) {
  switch (args.dtype) {
    case kU8:
      return fold_integers<uint8_t, uint8_t>(place, args);
    case kI8:
      return fold_integers<int8_t, uint8_t>(place, args);
    case kU16:
      return fold_integers<uint16_t, uint16_t>(place, args);
    case kI16:
      return fold_integers<int16_t, uint16_t>(place, args);
    case kU32:
      return fold_integers<uint32_t, uint32_t>(place, args);
    case kI32:
      return fold_integers<int32_t, uint32_t>(place, args);
    case kU64:
      return fold_integers<uint64_t, uint64_t>(place, args);
    case kI64:
      return fold_integers<int64_t, uint64_t>(place, args);
    case kF16:
      return fold_floats<F16>(place, args);
    case kBf16:
      return fold_floats<Bf16>(place, args);
    case kF32:
      return fold_floats<F32>(place, args);
    default:
      return fold_floats<F64>(place, args);
  }
}

}  // namespace weft::cuda
