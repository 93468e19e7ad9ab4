// The bodies of weft_squares and weft_squares_total. Their host counterpart is lib/kernels/squares.cpp. 32
// threads compute the sum of each range; then one block adds up these sums.
#pragma once

#include "kernels/cuda/block.h"

namespace weft::cuda {

struct SquaresShared {
  double sums[kKernelThreads];
  uint32_t odd[kKernelThreads];
};
static_assert(kSquaresPartial == kKernelLanes && kSquaresTotals == kKernelThreads, "a thread a partial sum");

template <class E>
WEFT_KERNEL_CODE void add_squares(const SquaresKernelArgs& args, uint64_t begin, uint64_t end, double* sum,
                                  uint32_t* odd) {
  const auto* const values = reinterpret_cast<const typename E::Stored*>(args.src);
  for (uint64_t i = begin; i < end; i += kSquaresPartial) {
    const auto value = static_cast<double>(E::load(values[i]));
    *sum = *sum + value * value;
    if (!(value - value == 0)) (*odd)++;
  }
}

WEFT_KERNEL_CODE void squares(const Block& block, SquaresShared& shared, const SquaresKernelArgs& args) {
  block.each([&](uint32_t t) {
    const uint64_t range = block.index * kKernelGroups + t / kSquaresPartial;
    const uint64_t begin = range * kSquaresRange + t % kSquaresPartial;
    uint64_t end = (range + 1) * kSquaresRange;
    if (end > args.count) end = args.count;
    double* const sum = &shared.sums[t];
    uint32_t* const odd = &shared.odd[t];
    *sum = 0;
    *odd = 0;
    switch (args.dtype) {
      case kF16:
        return add_squares<F16>(args, begin, end, sum, odd);
      case kBf16:
        return add_squares<Bf16>(args, begin, end, sum, odd);
      case kF32:
        return add_squares<F32>(args, begin, end, sum, odd);
      default:
        return add_squares<F64>(args, begin, end, sum, odd);
    }
  });
  add_halves(block, shared.sums, kSquaresPartial);
  add_halves(block, shared.odd, kSquaresPartial);
  block.each([&](uint32_t t) {
    const uint64_t range = block.index * kKernelGroups + t / kSquaresPartial;
    if (t % kSquaresPartial != 0 || range * kSquaresRange >= args.count) return;
    args.parts[range].sum = shared.sums[t];
    args.parts[range].odd = shared.odd[t];
  });
}

WEFT_KERNEL_CODE void squares_total(const Block& block, SquaresShared& shared,
                                    const SquaresKernelArgs& args) {
  const uint64_t ranges = (args.count + kSquaresRange - 1) / kSquaresRange;
  block.each([&](uint32_t t) {
    shared.sums[t] = 0;
    shared.odd[t] = 0;
    for (uint64_t s = t; s < ranges; s += kSquaresTotals) {
      shared.sums[t] = shared.sums[t] + args.parts[s].sum;
      shared.odd[t] += args.parts[s].odd != 0 ? 1 : 0;
    }
  });
  add_halves(block, shared.sums, kSquaresTotals);
  add_halves(block, shared.odd, kSquaresTotals);
  block.each([&](uint32_t t) {
    if (t != 0) return;
    args.result->sum = shared.sums[0];
    args.result->finite = shared.odd[0] == 0;
  });
}

}  // namespace weft::cuda
