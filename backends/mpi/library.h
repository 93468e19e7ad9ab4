// The MPI library of this process, as Weft uses it: whether it may be called, from which threads, and who
// begins and ends it. Used by the backend's probe and by its Link. Threads: any thread, unless said.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <string>

#include "base/status.h"

namespace weft::mpi {

// "Open MPI v4.1.4", "MPICH 4.0.2": of the library that is loaded, which need not be the one that this was
// built for.
std::string version();

// kUnavailable with "because ..." unless the library is the right one and MPI runs, or may be begun by Weft:
// where Weft itself has loaded it. A program that has loaded MPI begins it when it likes.
Status usable();

// From which threads MPI may be called.
enum class Callers { kAny, kOneAtATime, kMainThread };

// Begin MPI if nobody has; all ranks of the job do so together, so the first communicator must have all of
// them: size. kUnavailable where MPI does not allow what an engine with a progress thread, or
// one without, does. On the program's thread.
Status begin(int size, bool progress_thread, Callers* callers);

// For the time of a call of MPI's that may never return: at exit MPI is not ended while there is one.
class LongCall {
 public:
  LongCall();
  ~LongCall();
  LongCall(const LongCall&) = delete;
  LongCall& operator=(const LongCall&) = delete;
};

// kUnavailable: "because what: MPI's words".
Status failed(const std::string& what, int error);
std::string words(int error);

}  // namespace weft::mpi
