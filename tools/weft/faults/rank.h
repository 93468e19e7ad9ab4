// One rank of a run of `weft bench faults`: a process of its own that sees weft.h alone. It speaks Words on
// standard output, and is told to end by the end of standard input.
#pragma once

#include <string>

#include "draw.h"

namespace faults {

// parent: whose end is also this process's. Returns the exit code.
int be_rank(const Draw& draw, int rank, const std::string& store, int parent);

}  // namespace faults
