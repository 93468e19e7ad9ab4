// Encodes a rank's result for the other ranks while a communicator is being created. Pure functions. Threads:
// any thread.
#pragma once

#include "base/buffer.h"
#include "base/status.h"

namespace weft {

// Encodes code, evidence, ranks and the text, which may be truncated.
Bytes encode_result(const Status& result);
// Decodes bytes from another rank. Returns false for bytes that encode_result does not write, and if a named
// rank is not below `size`.
bool decode_result(ByteView bytes, int size, Status* result);

}  // namespace weft
