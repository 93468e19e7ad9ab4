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
  void encode(float* values, const Piece& piece, const Encoding& how, std::byte* to,
              std::byte* /*scratch*/) const override {
    QuantizeArgs args;
    args.code = code_;
    args.block = block_;
    args.values = values;
    args.scales = reinterpret_cast<float*>(to) + piece.first / block_;
    args.codes = to + scales_bytes(piece.slice) + codes_bytes(piece.first);
    args.count = piece.count;
    args.addend = how.addend;
    args.residual = how.residual;
    args.error = how.error;
    args.error_scale = how.error_scale;
    args.stochastic = stochastic_;
    args.seed = static_cast<uint32_t>(mix(how.seed ^ piece.first));
    host_.quantize(args);
  }
  void decode(const Encoded& from, const Piece& piece, double scale, float* values) const override {
    DequantizeArgs args;
    args.code = code_;
    args.block = block_;
    args.scales = reinterpret_cast<const float*>(from.first) + piece.first / block_;
    args.codes = from.first + scales_bytes(piece.slice) + codes_bytes(piece.first);
    args.inputs = from.count;
    args.stride_bytes = from.stride_bytes;
    args.values = values;
    args.count = piece.count;
    args.postscale = static_cast<float>(scale);
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
