// A hook that sends encoded gradients: each rank encodes its contributions, slice by slice, and sends every
// slice to its owner; the owner decodes and adds them in rank order, divides, encodes the mean, and sends
// that to all. So a rank sends 2 (W-1)/W encoded buckets, as in an all-reduce, and not the W - 1 of an
// all-gather; all ranks decode the same bytes. What either encoding loses is added to the next step's
// contributions, if feedback is on: the owner adds what its encoding lost, times the divisor.
//
// Made by the factories of hooks, which bring a Codec. Calls never overlap (core/hook.h).
#pragma once

#include <memory>
#include <string>

#include "core/hook.h"

namespace weft {

// How a slice is encoded. Threads: the hook's.
class Codec {
 public:
  virtual ~Codec() = default;
  // Slices, but the last, are multiples of it.
  virtual uint64_t unit() const { return 1; }
  // Values of a piece of a slice, a multiple of unit(): what comes before and after encoding finds a piece in
  // the cache. 0: a slice is encoded as a whole.
  virtual uint64_t piece() const { return 0; }
  // Of an encoded slice of so many values; a multiple of 4.
  virtual uint64_t bytes(uint64_t slice) const = 0;
  // Of memory for encoding such a slice.
  virtual uint64_t scratch_bytes(uint64_t /*slice*/) const { return 0; }
  // Encode `count` values, a piece: those from `first` on of a slice, which begins at `to`. With residual:
  // values become what is lost, finite in any case. scratch: aligned to 64 bytes.
  virtual void encode(float* values, uint64_t first, uint64_t count, uint64_t slice, bool residual,
                      uint64_t seed, std::byte* to, std::byte* scratch) const = 0;
  // values[i] = what was encoded, or values[i] + that. The bytes may come from another process and be
  // anything.
  virtual void decode(const std::byte* from, uint64_t first, uint64_t count, uint64_t slice, bool add,
                      float* values) const = 0;
};

struct CompressedSettings {
  std::string name;  // with all options
  bool feedback = true;
  bool rescue = false;  // needs feedback
  uint64_t seed = 0;
};

std::shared_ptr<Hook> make_compressed(CompressedSettings settings, std::unique_ptr<Codec> codec,
                                      const HookArgs& args);

}  // namespace weft
