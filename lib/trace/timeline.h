// Writes recorded events in Chrome's trace event format, which Perfetto and chrome://tracing open. A file has
// the events of one process, and otherData describes it, for `weft trace merge` and `weft report`
// (tools/weft/report/trace_file.h). A reducer's tracks are its steps and buckets, its lane's collectives, and
// its hook's stages. Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "comm/trace_comms.h"
#include "trace/recorder.h"

namespace weft {

inline constexpr int kTraceFormat = 1;

// The process whose events a file has.
struct TraceProcess {
  std::string host;
  int64_t pid = 0;
  std::string clock;             // equal for processes that read the same clock; empty: unknown
  std::vector<TraceComm> comms;  // those of its context
  uint64_t lost = 0;             // number of overwritten events
};
// Describes this process, without comms and lost.
TraceProcess describe_process();

// Returns the file's text. Chrome's process id is the rank in the largest communicator. args.comm is the
// index of a communicator that is not the first one, args.lane that of a lane that is not the first one.
std::string timeline_text(const std::vector<RecordedEvent>& events, const TraceProcess& process);

// Writes the file atomically: a reader sees the new file or the previous one. kSystem.
Status write_timeline(const std::vector<RecordedEvent>& events, const TraceProcess& process,
                      const std::string& path);

}  // namespace weft
