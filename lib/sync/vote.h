// What a rank brings to an agreement (agreement.h), as bytes. Pure functions, for agreement.cpp and tests;
// what is decoded is another rank's word. Threads: any thread.
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
  std::string reason;  // why it cannot, unless kOk
  Digest content{};
};

Bytes encode(const Vote& vote);
// False for anything that encode does not write.
bool decode(ByteView bytes, Vote* vote);

}  // namespace weft
