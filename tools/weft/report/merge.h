// Merges the traces of a run's ranks into one trace with a process per rank. Called by `weft trace merge`.
#pragma once

#include <string>

#include "base/status.h"
#include "run_files.h"

namespace report {

// Returns the merged trace. It keeps every event of the processes' files, at its time on rank 0's clock.
// kSystem: a file cannot be read again.
weft::Status merged_text(const RunFiles& run, std::string* text);

}  // namespace report
