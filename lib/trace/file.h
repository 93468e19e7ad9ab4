// Atomic file writes: a reader sees the whole file or none of it. Called on the thread that writes a trace or
// a flight record.
#pragma once

#include <string>

#include "base/status.h"

namespace weft {

// Writes text to a temporary file beside `path` and renames it. what: for error texts ("the trace"). On
// kSystem the previous file stays. Threads: any thread.
Status write_whole(const std::string& text, const std::string& path, const char* what);

}  // namespace weft
