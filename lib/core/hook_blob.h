// Saved state of a hook as bytes that tell what they are: "WEFTHOOK", a version, flags, the hook's full name,
// its state, and a checksum of all that (docs/hooks.md). Called by lib/capi with the hook's turn.
#pragma once

#include <string>

#include "base/buffer.h"
#include "base/status.h"
#include "core/hook.h"

namespace weft {

struct HookBlob {
  bool own_comm = false;  // it worked over a communicator of its own
  std::string name;       // Hook::name()
  ByteView state;         // what Hook::save wrote; points into the blob
};

Status save_hook(Hook& hook, Bytes* blob);
// kArg for bytes that are cut, altered or of something else. The bytes may be anything.
Status read_hook(ByteView blob, HookBlob* out);
// Also kMismatch for another hook's.
Status load_hook(Hook& hook, ByteView blob);

}  // namespace weft
