// What the fuzz targets share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/buffer.h"

// One input. Returns 0; anything wrong ends the process.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace weft::fuzz {

// Ends the process, in every build.
inline void demand(bool condition) {
  if (!condition) __builtin_trap();
}

// Takes an input apart. Always has something to give: zeros and nothing at the end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(std::as_bytes(std::span(data, size))) {}
  bool empty() const { return bytes_.empty(); }
  uint8_t byte() {
    const ByteView one = take(1);
    return one.empty() ? uint8_t{0} : static_cast<uint8_t>(one[0]);
  }
  // At most `most` bytes, fewer at the end.
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
