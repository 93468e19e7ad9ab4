// Recognises host streams. Threads: any thread.
#pragma once

#include <weft/weft.h>

#include "base/status.h"

namespace weft {

inline bool on_host(const weft_stream* stream) {
  return stream == nullptr || stream->kind == WEFT_DEVICE_HOST;
}

inline Status no_streams() {
  return Status::error(Code::kUnsupported,
                       "the stream belongs to a device, but the gradients are in host memory: pass NULL or a "
                       "stream of kind WEFT_DEVICE_HOST");
}

}  // namespace weft
