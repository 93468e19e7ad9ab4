// Functions that the files of this folder share, for the instruction set being compiled.
#if defined(WEFT_KERNELS_PER_TARGET_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_KERNELS_PER_TARGET_INL_H
#undef WEFT_KERNELS_PER_TARGET_INL_H
#else
#define WEFT_KERNELS_PER_TARGET_INL_H
#endif

#include <hwy/highway.h>
#include "device/device.h"

namespace weft {
using FoldFunction = void (*)(const FoldArgs& args);
using ConvertFunction = void (*)(const CopyArgs& args);

namespace HWY_NAMESPACE {

// Fold floats or integers. Called with arguments that check_reduction accepts.
void fold_floats(const FoldArgs& args);
void fold_integers(const FoldArgs& args);

// dst[i] = round(scale * src[i]), for any two floating-point types.
void convert(const CopyArgs& args);
// dst[i] = round(dst[i] + scale * src[i]), for equal floating-point types, or f16 or bf16 to f32.
void convert_add(const CopyArgs& args);

void quantize_blocks(const QuantizeArgs& args);
void dequantize_blocks(const DequantizeArgs& args);
void low_rank_product(const LowRankArgs& args);
Squares squares_of(const SquaresArgs& args);

}  // namespace HWY_NAMESPACE
}  // namespace weft

#endif
