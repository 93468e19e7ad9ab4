// Recorded events as a file of Chrome's trace event format, which Perfetto and chrome://tracing open: a
// process a rank; the tracks of a reducer are its steps and buckets, its lane's collectives, and its hook's
// stages. Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "trace/recorder.h"

namespace weft {

// The file's text. lost: events that were overwritten before.
std::string timeline_text(const std::vector<RecordedEvent>& events, uint64_t lost);

// Written beside `path` and renamed, so that a reader sees all of it or what was there before. kSystem.
Status write_timeline(const std::vector<RecordedEvent>& events, uint64_t lost, const std::string& path);

}  // namespace weft
