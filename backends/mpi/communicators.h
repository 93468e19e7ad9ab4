// Creates the MPI communicators of a link. Called on the thread that makes Weft's communicator.
#pragma once

#include <vector>

#include "base/clock.h"
#include "library.h"
#include "transport/exchange.h"

namespace weft::mpi {

// The link's communicator, and those of MPI's own collectives if they are wanted.
struct Communicators {
  MPI_Comm link = MPI_COMM_NULL;
  std::vector<MPI_Comm> natives;
};

struct CommunicatorRequest {
  Exchange& exchange;  // among the ranks of the communicator
  Clock& clock;
  Deadline deadline;
  Callers callers;
  std::vector<int> world_ranks;  // of the members, by rank
  int tag = 0;                   // separates communicators that are created at the same time
  bool natives = false;
};

// Creates the communicators. Collective. *made receives what exists, also after an error. It ends by the
// deadline if MPI lets any thread call it.
Status create_communicators(const CommunicatorRequest& request, Communicators* made);

}  // namespace weft::mpi
