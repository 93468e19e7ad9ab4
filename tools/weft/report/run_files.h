// The files of a run: traces of its ranks on one clock, and flight records. Called by `weft trace merge` and
// `weft report`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "trace_file.h"
#include "weft/flight.h"
#include "weft/foreign_file.h"

namespace report {

// A process of the run. The times of its events are on rank 0's clock.
struct Process {
  TraceFile file;
  int rank = 0;                            // in the run's communicator
  int64_t offset_ns = 0;                   // was added to its times
  std::optional<uint64_t> clock_error_ns;  // absent: its clock could not be compared with the others'
};

struct RunFiles {
  uint64_t comm = 0;               // id of the communicator that most files share
  int size = 0;                    // its ranks; 0: unknown
  std::vector<Process> processes;  // ascending by rank
  FlightFolder flights;            // its unread is empty
  UnreadFiles damaged;             // files that were left out, or of which a part is missing
};

// Reads files and the *.json of folders. Files that cannot be used are in damaged. kArg: none can be used;
// the text has the reasons.
weft::Status read_run(const std::vector<std::string>& paths, RunFiles* run);

}  // namespace report
