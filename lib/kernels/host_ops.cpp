// The host's operations. Copies without arithmetic use memcpy; everything else calls the kernel for its
// types. There is one table for each instruction set.
#include "kernels/host_ops.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include <hwy/cache_control.h>

#include "kernels/float_environment.h"
#include "kernels/targets.h"

// Compile this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/host_ops.cpp"
#include <hwy/foreach_target.h>

#include "kernels/per_target-inl.h"
#include "kernels/select-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr uint64_t kStreamBytes = uint64_t{64} << 10;  // a smaller copy stays in the caches

void copy_bytes(std::byte* dst, const std::byte* src, uint64_t size) {
  if (dst != src && size != 0) std::memcpy(dst, src, size);
}

// Copies with streaming stores, which bypass the caches: no line of dst is read before it is overwritten.
void stream_bytes(std::byte* dst, const std::byte* src, uint64_t size) {
  const hn::ScalableTag<uint8_t> d;
  const uint64_t lanes = hn::Lanes(d);
  const uint64_t head = std::min<uint64_t>(-reinterpret_cast<uintptr_t>(dst) % lanes, size);
  copy_bytes(dst, src, head);
  const auto* const from = reinterpret_cast<const uint8_t*>(src);
  auto* const to = reinterpret_cast<uint8_t*>(dst);
  uint64_t at = head;
  for (; size - at >= 4 * lanes; at += 4 * lanes) {
    const auto a = hn::LoadU(d, from + at), b = hn::LoadU(d, from + at + lanes);
    const auto e = hn::LoadU(d, from + at + 2 * lanes), f = hn::LoadU(d, from + at + 3 * lanes);
    hn::Stream(a, d, to + at);
    hn::Stream(b, d, to + at + lanes);
    hn::Stream(e, d, to + at + 2 * lanes);
    hn::Stream(f, d, to + at + 3 * lanes);
  }
  hwy::FlushStream();
  copy_bytes(dst + at, src + at, size - at);
}

void fold(const FoldArgs& args) {
  assert(args.input_count >= 1 && args.output_count >= 1 && check_reduction(args.op, args.dtype).ok());
  if (args.count == 0) return;
  if (!computes(args.dtype)) {
    const Arithmetic as = arithmetic(args.op, args.dtype);
    FoldArgs parts = args;
    parts.dtype = as.dtype;
    parts.op = as.op;
    parts.count *= as.parts;
    return fold(parts);
  }
  if (!is_float(args.dtype)) return fold_integers(args);
  const FloatEnvironment fixed;
  fold_floats(args);
}

void copy(const CopyArgs& args) {
  assert(args.src_dtype == args.dst_dtype || (is_float(args.src_dtype) && is_float(args.dst_dtype)));
  if (args.src_dtype == args.dst_dtype && (args.scale == 1.0 || !is_float(args.src_dtype))) {
    const uint64_t size = args.count * dtype_size(args.src_dtype);
    const bool streaming = args.streaming && size >= kStreamBytes && args.dst != args.src;
    return (streaming ? stream_bytes : copy_bytes)(args.dst, args.src, size);
  }
  const FloatEnvironment fixed;
  convert(args);
}

void accumulate(const CopyArgs& args) {
  if (!is_float(args.dst_dtype)) {
    assert(args.src_dtype == args.dst_dtype);
    const std::byte* const inputs[] = {args.dst, args.src};
    return fold({.dtype = args.dst_dtype,
                 .inputs = inputs,
                 .input_count = 2,
                 .outputs = &args.dst,
                 .output_count = 1,
                 .count = args.count});
  }
  assert(args.src_dtype == args.dst_dtype ||
         (is_float(args.src_dtype) && args.src_dtype != Dtype::kF64 && args.dst_dtype != Dtype::kF64));
  const FloatEnvironment fixed;
  convert_add(args);
}

void quantize(const QuantizeArgs& args) {
  const FloatEnvironment fixed;
  quantize_blocks(args);
}

void dequantize(const DequantizeArgs& args) {
  const FloatEnvironment fixed;
  dequantize_blocks(args);
}

void low_rank(const LowRankArgs& args) {
  const FloatEnvironment fixed;
  for (uint64_t i = 0; i < args.batch; i++) {
    LowRankArgs one = args;
    if (args.offsets != nullptr) one.matrix += args.offsets[i];
    one.left += i * args.rows * args.rank;
    one.right += i * args.columns * args.rank;
    one.residual = args.residual == nullptr ? one.matrix : args.residual + i * args.rows * args.columns;
    low_rank_product(one);
  }
}

Squares squares(const SquaresArgs& args) {
  const FloatEnvironment fixed;
  return squares_of(args);
}

// Builds "host AVX2" and the like, from the name of the namespace, which is N_AVX2.
struct Name {
  char text[32] = "host ";
  constexpr Name() {
    constexpr char kNamespace[] = HWY_STR(HWY_NAMESPACE);
    static_assert(sizeof kNamespace < sizeof text);
    for (size_t i = 2; i < sizeof kNamespace; i++) text[i + 3] = kNamespace[i];
  }
};
constexpr Name kName;
constexpr DeviceOps kOps{kName.text, fold,     copy,    accumulate,    quantize,
                         dequantize, low_rank, squares, select_largest};

}  // namespace

const DeviceOps& ops() {
  return kOps;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(ops);

const DeviceOps& host_ops() {
  return HWY_DYNAMIC_DISPATCH(ops)();
}

}  // namespace weft
#endif
