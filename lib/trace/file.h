// Files that a reader sees whole or not at all. Called by who writes traces and flight records, on its
// thread.
#pragma once

#include <string>

#include "base/status.h"

namespace weft {

// Write text beside `path` and rename it. what: for error texts ("the trace"). kSystem; nothing is left there
// then but what was before. Threads: any thread.
Status write_whole(const std::string& text, const std::string& path, const char* what);

}  // namespace weft
