// Saved state of a hook as self-describing bytes: "WEFTHOOK", a version, flags, the hook's full name, its
// state, and a checksum over all of these (docs/dev/hooks.md). Called by lib/capi with the hook's turn taken.
#pragma once

#include <string>

#include "base/buffer.h"
#include "base/status.h"
#include "hook/hook.h"

namespace weft {

struct HookBlob {
  bool own_comm = false;  // the hook worked over its own communicator
  std::string name;       // Hook::name()
  ByteView state;         // what Hook::save wrote; points into the blob
};

Status save_hook(Hook& hook, Bytes* blob);
// Parses a blob. kArg for truncated, altered or foreign bytes; any bytes are safe.
Status read_hook(ByteView blob, HookBlob* out);
// Restores a hook. As read_hook; kMismatch if the blob belongs to another hook.
Status load_hook(Hook& hook, ByteView blob);

}  // namespace weft
