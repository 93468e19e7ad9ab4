// Folds of integers, which wrap, for every instruction set. Called through host_ops.cpp.
#include <cstring>
#include <type_traits>

#include "kernels/targets.h"

// Compile this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fold_integer.cpp"
#include <hwy/foreach_target.h>

#include "kernels/fold-inl.h"
#include "kernels/per_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

struct Minimum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Min(a, b);
  }
};
struct Maximum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Max(a, b);
  }
};
struct BitAnd {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::And(a, b);
  }
};
struct BitOr {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Or(a, b);
  }
};
struct BitXor {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Xor(a, b);
  }
};

// A plain loop, because products of integers are rare and some instruction sets cannot multiply vectors of
// all widths.
template <class T>
void fold_product(const FoldArgs& args) {
  for (uint64_t i = 0; i < args.count; i++) {
    T product = 1;
    for (int j = 0; j < args.input_count; j++) {
      T factor;
      std::memcpy(&factor, args.inputs[j] + i * sizeof(T), sizeof(T));
      product = static_cast<T>(uint64_t{product} * factor);
    }
    for (int j = 0; j < args.output_count; j++) {
      std::memcpy(args.outputs[j] + i * sizeof(T), &product, sizeof(T));
    }
  }
}

// These operations compute the same bits for signed and unsigned integers, unlike minimum and maximum.
template <class Unsigned>
FoldFunction fold_bits_of(const FoldArgs& args) {
  using E = Plain<Unsigned>;
  switch (args.op) {
    case ReduceOp::kProd:
      return fold_product<Unsigned>;
    case ReduceOp::kBand:
      return fold_all<E, BitAnd, false>;
    case ReduceOp::kBor:
      return fold_all<E, BitOr, false>;
    case ReduceOp::kBxor:
      return fold_all<E, BitXor, false>;
    default:
      return sum_of<E, false>(args.input_count, args.output_count);
  }
}

template <class T>
FoldFunction fold_of(const FoldArgs& args) {
  if (args.op == ReduceOp::kMin) return fold_all<Plain<T>, Minimum, false>;
  if (args.op == ReduceOp::kMax) return fold_all<Plain<T>, Maximum, false>;
  return fold_bits_of<std::make_unsigned_t<T>>(args);
}

}  // namespace

void fold_integers(const FoldArgs& args) {
  switch (args.dtype) {
    case Dtype::kU8:
      return fold_of<uint8_t>(args)(args);
    case Dtype::kI8:
      return fold_of<int8_t>(args)(args);
    case Dtype::kU16:
      return fold_of<uint16_t>(args)(args);
    case Dtype::kI16:
      return fold_of<int16_t>(args)(args);
    case Dtype::kU32:
      return fold_of<uint32_t>(args)(args);
    case Dtype::kI32:
      return fold_of<int32_t>(args)(args);
    case Dtype::kU64:
      return fold_of<uint64_t>(args)(args);
    default:
      return fold_of<int64_t>(args)(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
