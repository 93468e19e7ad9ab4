// Detects the MPI library of this process. Open MPI and MPICH share function names but no ABI, so Weft has a
// module for each, and a process may load only one. Called by the registry.
#pragma once

#include <string>

#include "base/status.h"
#include "environment/launch.h"

namespace weft {

struct MpiFacts {
  std::string loaded;    // "openmpi" or "mpich": the MPI library that the process has loaded; empty: none
  std::string launcher;  // the MPI library whose mpirun started this process; empty: none
};

// Returns the facts about this process. Any thread.
MpiFacts mpi_facts();

// Returns the flavour whose module may be loaded, or kUnavailable with the reason. An MPI library is not
// loaded into a process that is not a rank of an MPI job: it would be useless, and would prevent the program
// from loading another one later. Pure.
Status choose_mpi(const MpiFacts& facts, std::string* flavour);

// Returns "Open MPI" or "MPICH".
const char* mpi_title(const std::string& flavour);

}  // namespace weft
