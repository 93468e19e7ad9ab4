// One rank of a run of `weft bench faults`: a separate process that uses only weft.h. It writes Words to
// standard output. The end of standard input asks it to end.
#pragma once

#include <string>

#include "draw.h"

namespace faults {

// parent: this process ends with it. Returns the exit code.
int be_rank(const Draw& draw, int rank, const std::string& store, int parent);

}  // namespace faults
