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
                       "its gradients are in host memory, which device streams do not order");
}

}  // namespace weft
