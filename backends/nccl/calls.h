// Decides which collectives NCCL executes, and puts one on a communicator's stream, as NCCL calls and Weft's
// kernels. Needs the progress lock.
#pragma once

#include <cstdint>

#include "communicator.h"
#include "transport/collectives.h"

namespace weft::nccl {

// Returns false for operations that host memory executes: types and operations that NCCL lacks, and
// collectives whose bits must not depend on how they are executed.
bool executes(const CollectiveArgs& args);

// Memory that an operation needs besides its buffers, until it ends.
struct Workspace {
  static constexpr uint64_t kPieces = 2048;
  static constexpr uint64_t kBytes = kPieces * sizeof(CopyPiece);
  CopyPiece* pieces = nullptr;   // pinned memory: the pieces that a kernel scales
  ncclRedOp_t own = ncclNumOps;  // the NCCL operation that this call created
};

// launch() puts the operation on the stream. NCCL may finish the call asynchronously. Nothing else is put
// there until it has (Communicator::settled). launch_rest() then launches the remaining work.
Status launch(Communicator& communicator, const CollectiveArgs& args, Workspace& work);
Status launch_rest(Communicator& communicator, const CollectiveArgs& args, Workspace& work);

}  // namespace weft::nccl
