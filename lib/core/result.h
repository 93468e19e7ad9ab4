// A rank's result as it tells the others while a communicator is formed. Pure functions. Threads: any thread.
#pragma once

#include "base/buffer.h"
#include "base/status.h"

namespace weft {

// Code, evidence, ranks and (the beginning of) the text.
Bytes encode_result(const Status& result);
// Bytes of another rank. False for what encode_result does not write, and where a rank is named that is not
// one of `size`.
bool decode_result(ByteView bytes, int size, Status* result);

}  // namespace weft
