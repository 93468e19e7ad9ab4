// A rank's vote in an agreement (agreement.h), as bytes. Pure functions, for agreement.cpp and tests. Decoded
// bytes come from another rank. Threads: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "base/buffer.h"
#include "base/status.h"

namespace weft {

using Digest = std::array<std::byte, 32>;

struct Vote {
  Code code = Code::kOk;
  std::string reason;  // the error's text; empty for kOk
  Digest content{};
};

Bytes encode(const Vote& vote);
// False for bytes that encode does not write.
bool decode(ByteView bytes, Vote* vote);

}  // namespace weft
