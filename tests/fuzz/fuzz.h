// Helpers that the fuzz targets share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/buffer.h"

// Runs one input. Returns 0; any error ends the process.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace weft::fuzz {

// Ends the process if the condition is false, in every build type.
inline void demand(bool condition) {
  if (!condition) __builtin_trap();
}

// Splits an input into values. At its end it returns zeros and empty views.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(std::as_bytes(std::span(data, size))) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t byte() {
    const ByteView one = take(1);
    return one.empty() ? uint8_t{0} : static_cast<uint8_t>(one[0]);
  }
  // Returns at most `most` bytes, fewer at the end.
  ByteView take(size_t most) {
    const ByteView taken = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  ByteView rest() { return take(bytes_.size()); }

 private:
  ByteView bytes_;
};

}  // namespace weft::fuzz
