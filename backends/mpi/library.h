// The MPI library of this process: whether and from which threads Weft may call it, and whether Weft
// initialises and finalises it. Used by the backend's probe and by its Link. Threads: any thread, unless
// noted.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <string>

#include "base/status.h"

namespace weft::mpi {

// Returns "Open MPI v4.1.4" or "MPICH 4.0.2": the loaded library, which may differ from the one that this
// module was built for.
std::string version();

// Returns kUnavailable with the reason unless the library is the right one and MPI is initialised, or Weft
// may initialise it. Weft may do so only if it has loaded the library itself. A program that has loaded MPI
// initialises it itself, at any time.
Status usable();

// The threads that may call MPI.
enum class Callers { kAny, kOneAtATime, kMainThread };

// Initialises MPI if that has not happened yet. All ranks of the job must do so together, so the first
// communicator must contain all of them: size. Returns kUnavailable if MPI does not allow the calls that an
// engine makes with, or without, a progress thread. Called on the program's thread.
Status begin(int size, bool progress_thread, Callers* callers);

// Marks an MPI call that may never return. At exit MPI is not finalised while one exists.
class LongCall {
 public:
  LongCall();
  ~LongCall();
  LongCall(const LongCall&) = delete;
  LongCall& operator=(const LongCall&) = delete;
};

// Returns kUnavailable with the text "<what>: <MPI's text for the error>".
Status failed(const std::string& what, int error);
// Returns MPI's text for the error code.
std::string words(int error);

}  // namespace weft::mpi
