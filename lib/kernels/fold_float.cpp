// Folds of floating-point types, for every instruction set. Called through host_ops.cpp.
#include "kernels/targets.h"

// Compile this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fold_float.cpp"
#include <hwy/foreach_target.h>

#include "kernels/fold-inl.h"
#include "kernels/per_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

struct Product {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::Mul(a, b);
  }
};
// Returns the earlier of equal values; a NaN wins and stays.
struct Minimum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
  }
};
struct Maximum {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(b)), b, a);
  }
};

// A multiplication by 1 changes nothing, so only sums have a variant without scales.
template <class E>
FoldFunction fold_of(const FoldArgs& args) {
  switch (args.op) {
    case ReduceOp::kProd:
      return fold_all<E, Product, true>;
    case ReduceOp::kMin:
      return fold_all<E, Minimum, true>;
    case ReduceOp::kMax:
      return fold_all<E, Maximum, true>;
    default:
      if (streams(args)) return fold_all<E, Sum, true, 0, 0, true>;
      const bool scaled = args.prescale != 1.0 || args.postscale != 1.0;
      return scaled ? sum_of<E, true>(args.input_count, args.output_count)
                    : sum_of<E, false>(args.input_count, args.output_count);
  }
}

}  // namespace

void fold_floats(const FoldArgs& args) {
  switch (args.dtype) {
    case Dtype::kF16:
      return fold_of<F16>(args)(args);
    case Dtype::kBf16:
      return fold_of<Bf16Pairs>(args)(args);
    case Dtype::kF32:
      return fold_of<F32>(args)(args);
    default:
      return fold_of<F64>(args)(args);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
