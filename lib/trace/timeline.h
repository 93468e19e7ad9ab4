// Writes recorded events in Chrome's trace event format, which Perfetto and chrome://tracing open. Each rank
// is a process. A reducer's tracks are its steps and buckets, its lane's collectives, and its hook's stages.
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "trace/recorder.h"

namespace weft {

// Returns the file's text. lost: number of overwritten events.
std::string timeline_text(const std::vector<RecordedEvent>& events, uint64_t lost);

// Writes the file atomically: a reader sees the new file or the previous one. kSystem.
Status write_timeline(const std::vector<RecordedEvent>& events, uint64_t lost, const std::string& path);

}  // namespace weft
