// A Codec with a scale for each block of codes. A slice is encoded as its scales, followed by its codes.
#pragma once

#include "common/bucket.h"
#include "common/compressed.h"
#include "device/device.h"

namespace weft {

class BlockCodec final : public Codec {
 public:
  // block: values per scale, a power of two from 32 to 16384.
  BlockCodec(BlockCode code, uint32_t block, bool stochastic, const DeviceOps& host)
      : code_(code), block_(block), stochastic_(stochastic), host_(host) {}

  uint64_t unit() const override { return block_; }
  uint64_t piece() const override { return kPiece; }
  uint64_t bytes(uint64_t slice) const override { return scales_bytes(slice) + codes_bytes(slice); }
  void encode(float* values, uint64_t first, uint64_t count, uint64_t slice, bool residual, uint64_t seed,
              std::byte* to, std::byte* /*scratch*/) const override {
    QuantizeArgs args;
    args.code = code_;
    args.block = block_;
    args.values = values;
    args.scales = reinterpret_cast<float*>(to) + first / block_;
    args.codes = to + scales_bytes(slice) + codes_bytes(first);
    args.count = count;
    args.residual = residual;
    args.stochastic = stochastic_;
    args.seed = static_cast<uint32_t>(mix(seed ^ first));
    host_.quantize(args);
  }
  void decode(const std::byte* from, uint64_t first, uint64_t count, uint64_t slice, bool add,
              float* values) const override {
    DequantizeArgs args;
    args.code = code_;
    args.block = block_;
    args.scales = reinterpret_cast<const float*>(from) + first / block_;
    args.codes = from + scales_bytes(slice) + codes_bytes(first);
    args.values = values;
    args.count = count;
    args.add = add;
    host_.dequantize(args);
  }

 private:
  static constexpr uint64_t kPiece = 16384;  // 64 KiB of values; a multiple of every block size

  // Returns the bytes of a slice's scales. slice: number of values, a multiple of block_.
  uint64_t scales_bytes(uint64_t slice) const { return slice / block_ * sizeof(float); }
  uint64_t codes_bytes(uint64_t values) const { return code_ == BlockCode::kSign ? values / 8 : values; }

  const BlockCode code_;
  const uint32_t block_;
  const bool stochastic_;
  const DeviceOps& host_;
};

}  // namespace weft
