// A hook that sends encoded gradients. Each rank encodes its contributions, slice by slice, and sends every
// slice to its owner. The owner decodes and adds them in rank order, divides, encodes the mean, and sends it
// to all ranks. A rank thus sends 2 (W-1)/W encoded buckets, as in an all-reduce, instead of the W - 1 of an
// all-gather. All ranks decode the same bytes. With feedback the losses of both encodings are added to the
// next step's contributions. The owner adds the loss of its own encoding times the divisor.
//
// Made by the factories of hooks, which provide a Codec. Calls never overlap (hook/hook.h).
#pragma once

#include <memory>
#include <string>

#include "hook/hook.h"

namespace weft {

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
  // Encodes a piece: `count` values from `first` on of a slice, whose encoding begins at `to`. residual:
  // values are replaced by the loss, which is always finite. scratch: aligned to 64 bytes.
  virtual void encode(float* values, uint64_t first, uint64_t count, uint64_t slice, bool residual,
                      uint64_t seed, std::byte* to, std::byte* scratch) const = 0;
  // Sets values[i] to the decoded value, or adds it (`add`). The bytes may come from another process and may
  // be invalid.
  virtual void decode(const std::byte* from, uint64_t first, uint64_t count, uint64_t slice, bool add,
                      float* values) const = 0;
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
