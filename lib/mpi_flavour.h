// Which MPI library this process uses: Open MPI and MPICH share their functions' names and nothing else, so
// that Weft has a module for each and a process may load one. Called by the registry.
#pragma once

#include <string>

#include "base/config.h"
#include "base/status.h"

namespace weft {

struct MpiFacts {
  std::string loaded;    // "openmpi", "mpich": the library that the process has loaded; empty: none
  std::string launcher;  // the one whose mpirun started this process; empty: none
};

// Of this process. Any thread.
MpiFacts mpi_facts();

// The flavour whose module may be loaded, or kUnavailable and why none may: loading an MPI library into a
// process that is no rank of an MPI job helps nobody, and forbids the program another one later. Pure.
Status choose_mpi(const MpiFacts& facts, std::string* flavour);

// "Open MPI".
const char* mpi_title(const std::string& flavour);

}  // namespace weft
