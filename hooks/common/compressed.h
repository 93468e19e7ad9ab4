// A hook that sends encoded gradients. Each rank encodes its contributions, slice by slice, and sends every
// slice to its owner. The owner decodes and adds them in rank order, divides, encodes the mean, and sends it
// to all ranks. A rank thus sends 2 (W-1)/W encoded buckets, as in an all-reduce, instead of the W - 1 of an
// all-gather. All ranks decode the same bytes. With feedback the losses of both encodings are added to the
// next step's contributions. The owner adds the loss of its own encoding times the divisor.
//
// In a sharded reducer the slices are its shares. The owner keeps the mean as it is, and sends nothing.
//
// Made by the factories of hooks, which provide a Codec. Calls never overlap (hook/hook.h).
#pragma once

#include <memory>
#include <string>

#include "hook/hook.h"

namespace weft {

// A piece of a slice: `count` values from `first` on. slice: values of a full slice.
struct Piece {
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t slice = 0;
};

// How to encode a piece. Only codecs with pieces get an addend or an error.
struct Encoding {
  const float* addend = nullptr;  // added to the values first; needs residual
  bool residual = false;          // values are replaced by the loss, which is always finite
  float* error = nullptr;         // gets error_scale * loss added instead; needs residual
  float error_scale = 1;
  uint64_t seed = 0;
};

// Encodings of the same slice by several ranks.
struct Encoded {
  const std::byte* first = nullptr;
  uint64_t count = 1;
  uint64_t stride_bytes = 0;
};

// The encoding of a slice. Threads: the hook's.
class Codec {
 public:
  virtual ~Codec() = default;
  // Returns the number of values of which all slices but the last are multiples.
  virtual uint64_t unit() const { return 1; }
  // Returns the number of values in a piece of a slice, a multiple of unit(), so that a piece stays in the
  // cache while it is processed. 0: a slice is encoded as a whole.
  virtual uint64_t piece() const { return 0; }
  // Returns the bytes of an encoded slice of this many values; a multiple of 4.
  virtual uint64_t bytes(uint64_t slice) const = 0;
  // Returns the bytes of memory that encoding such a slice needs.
  virtual uint64_t scratch_bytes(uint64_t /*slice*/) const { return 0; }
  // Encodes a piece of a slice, whose encoding begins at `to`. scratch: aligned to 64 bytes.
  virtual void encode(float* values, const Piece& piece, const Encoding& how, std::byte* to,
                      std::byte* scratch) const = 0;
  // Sets values[i] to scale * the sum of the decoded values, added in the order of the encodings. The bytes
  // may come from another process and may be invalid.
  virtual void decode(const Encoded& from, const Piece& piece, double scale, float* values) const = 0;
};

struct CompressedSettings {
  std::string name;  // includes all options
  bool feedback = true;
  bool rescue = false;  // needs feedback
  uint64_t seed = 0;
};

std::shared_ptr<Hook> make_compressed(CompressedSettings settings, std::unique_ptr<Codec> codec,
                                      const HookArgs& args);

}  // namespace weft
