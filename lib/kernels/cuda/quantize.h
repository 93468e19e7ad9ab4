// The bodies of weft_quantize and weft_dequantize. Their host counterpart is lib/kernels/quantize.cpp. 32
// threads handle a block of values with one scale.
#pragma once

#include "kernels/cuda/block.h"
#include "kernels/cuda/codes.h"

namespace weft::cuda {

struct QuantizeShared {
  uint32_t largest[kKernelThreads];  // bits of magnitudes: NaN is larger than Inf
  float sums[kKernelThreads];
};

// The work of one thread: every 32nd value of its block.
struct QuantizePlace {
  uint64_t number;  // of the block of values
  uint64_t begin;
  uint64_t end;
  uint32_t lane;
};

template <class Args>
WEFT_KERNEL_CODE QuantizePlace quantize_place(const Block& block, const Args& args, uint32_t thread) {
  QuantizePlace p;
  p.number = block.index * kKernelGroups + thread / kKernelLanes;
  p.begin = p.number * args.block < args.count ? p.number * args.block : args.count;
  p.end = args.count - p.begin < args.block ? args.count : p.begin + args.block;
  p.lane = thread % kKernelLanes;
  return p;
}

// Computes each thread's largest magnitude and, in the first 16 threads, the sum of every 16th magnitude.
WEFT_KERNEL_CODE void measure(const QuantizePlace& p, const QuantizeArgs& args, uint32_t* largest,
                              float* sum) {
  *largest = 0;
  *sum = 0;
  for (uint64_t i = p.begin + p.lane; i < p.end; i += kKernelLanes) {
    const uint32_t bits = bits_as<uint32_t>(args.values[i]) & 0x7FFFFFFFu;
    if (bits > *largest) *largest = bits;
  }
  if (args.code != BlockCode::kSign || p.lane >= 16) return;
  for (uint64_t i = p.begin + p.lane; i < p.end; i += 16) *sum += fabsf(args.values[i]);
}

constexpr uint32_t kInfinityBits = 0x7F800000;
constexpr float kSmallestScaled = 1e-30f;

template <class Code, bool kStochastic>
WEFT_KERNEL_CODE void encode_block(const QuantizePlace& p, const QuantizeArgs& args, uint32_t largest) {
  const bool lose = largest >= kInfinityBits;
  float scale = bits_as<float>(uint32_t{0x7FC00000});
  if (lose || bits_as<float>(largest) < kSmallestScaled) {
    if (!lose) scale = 0;
    for (uint64_t i = p.begin + p.lane; i < p.end; i += kKernelLanes) {
      args.codes[i] = std::byte{0};
      if (args.residual && lose) args.values[i] = 0;
    }
  } else {
    scale = bits_as<float>(largest) / Code::kLargest;
    const float inverse = 1 / scale;
    for (uint64_t i = p.begin + p.lane; i < p.end; i += kKernelLanes) {
      const float v = args.values[i];
      float decoded = 0;
      args.codes[i] =
          static_cast<std::byte>(Code::template encode<kStochastic>(v * inverse, args.seed, i, &decoded));
      if (args.residual) args.values[i] = v - decoded * scale;
    }
  }
  if (p.lane == 0) args.scales[p.number] = scale;
}

// Writes the codes of kSign. Each thread handles whole bytes of eight signs.
WEFT_KERNEL_CODE void encode_signs(const QuantizePlace& p, const QuantizeArgs& args, uint32_t largest,
                                   const float* sums) {
  float partial[16];
  for (uint32_t i = 0; i < 16; i++) partial[i] = sums[i];
  for (uint32_t half = 8; half > 0; half /= 2) {
    for (uint32_t i = 0; i < half; i++) partial[i] += partial[i + half];
  }
  float scale = partial[0] / static_cast<float>(p.end - p.begin);
  const bool lose = largest >= kInfinityBits || !(scale < bits_as<float>(kInfinityBits));
  if (lose) scale = bits_as<float>(uint32_t{0x7FC00000});
  if (bits_as<float>(largest) < kSmallestScaled) scale = 0;
  for (uint64_t begin = p.begin + 8 * p.lane; begin < p.end; begin += 8 * kKernelLanes) {
    uint32_t bits = 0;
    for (uint64_t i = begin; i < p.end && i < begin + 8; i++) {
      const float v = args.values[i];
      const bool negative = v < 0;
      bits |= static_cast<uint32_t>(negative) << (i - begin);
      if (args.residual) args.values[i] = lose ? 0 : v - (negative ? -scale : scale);
    }
    args.codes[begin / 8] = static_cast<std::byte>(bits);
  }
  if (p.lane == 0) args.scales[p.number] = scale;
}

template <class Code>
WEFT_KERNEL_CODE void encode_as(const QuantizePlace& p, const QuantizeArgs& args, uint32_t largest) {
  if (args.stochastic) return encode_block<Code, true>(p, args, largest);
  encode_block<Code, false>(p, args, largest);
}

WEFT_KERNEL_CODE void quantize(const Block& block, QuantizeShared& shared, const QuantizeArgs& args) {
  block.each([&](uint32_t t) {
    measure(quantize_place(block, args, t), args, &shared.largest[t], &shared.sums[t]);
  });
  block.each([&](uint32_t t) {
    const QuantizePlace p = quantize_place(block, args, t);
    if (p.begin == p.end) return;
    const uint32_t first = t - p.lane;
    uint32_t largest = 0;
    for (uint32_t i = first; i < first + kKernelLanes; i++) {
      if (shared.largest[i] > largest) largest = shared.largest[i];
    }
    switch (args.code) {
      case BlockCode::kInt8:
        return encode_as<Int8Code>(p, args, largest);
      case BlockCode::kE4m3:
        return encode_as<E4m3Code>(p, args, largest);
      case BlockCode::kE5m2:
        return encode_as<E5m2Code>(p, args, largest);
      default:
        return encode_signs(p, args, largest, shared.sums + first);
    }
  });
}

template <class Code>
WEFT_KERNEL_CODE void decode_block(const QuantizePlace& p, const DequantizeArgs& args) {
  const float scale = args.scales[p.number];
  for (uint64_t i = p.begin + p.lane; i < p.end; i += kKernelLanes) {
    float v = Code::decode(static_cast<uint8_t>(args.codes[i])) * scale;
    if (args.add) v = args.values[i] + v;
    args.values[i] = canonical(v);
  }
}

WEFT_KERNEL_CODE void decode_signs(const QuantizePlace& p, const DequantizeArgs& args) {
  const float scale = args.scales[p.number];
  for (uint64_t i = p.begin + p.lane; i < p.end; i += kKernelLanes) {
    const bool negative = static_cast<uint32_t>(args.codes[i / 8]) >> i % 8 & 1;
    float v = negative ? -scale : scale;
    if (args.add) v = args.values[i] + v;
    args.values[i] = canonical(v);
  }
}

WEFT_KERNEL_CODE void dequantize(const Block& block, const DequantizeArgs& args) {
  block.each([&](uint32_t t) {
    const QuantizePlace p = quantize_place(block, args, t);
    if (p.begin == p.end) return;
    switch (args.code) {
      case BlockCode::kInt8:
        return decode_block<Int8Code>(p, args);
      case BlockCode::kE4m3:
        return decode_block<E4m3Code>(p, args);
      case BlockCode::kE5m2:
        return decode_block<E5m2Code>(p, args);
      default:
        return decode_signs(p, args);
    }
  });
}

}  // namespace weft::cuda
