// Gradients are in the host's memory in this version: a stream is the host's, or none. Threads: any thread.
#pragma once

#include <weft/weft.h>

#include "base/status.h"

namespace weft {

inline bool on_host(const weft_stream* stream) {
  return stream == nullptr || stream->kind == WEFT_DEVICE_HOST;
}

inline Status no_streams() {
  return Status::error(Code::kUnsupported, "gradients on device streams are not supported in this version");
}

}  // namespace weft
