// Which collectives NCCL executes, and one of them as NCCL's calls and kernels of ours on a communicator's
// stream. Threads: with the drive lock held.
#pragma once

#include <cstdint>

#include "communicator.h"
#include "core/collectives.h"

namespace weft::nccl {

// Otherwise it is carried out in host memory: types and operations that NCCL does not have, and collectives
// whose bits must not depend on how they are executed.
bool executes(const CollectiveArgs& args);

// What an operation needs besides its buffers, until it is over.
struct Workspace {
  static constexpr uint64_t kPieces = 2048;
  static constexpr uint64_t kBytes = kPieces * sizeof(CopyPiece);
  CopyPiece* pieces = nullptr;   // pinned memory: what a kernel scales
  ncclRedOp_t own = ncclNumOps;  // an operation of NCCL's that it made
};

// Put it on the stream. NCCL may go on with that by itself, and nothing else is put there until it is done
// (Communicator::settled); then what is left.
Status launch(Communicator& communicator, const CollectiveArgs& args, Workspace& work);
Status launch_rest(Communicator& communicator, const CollectiveArgs& args, Workspace& work);

}  // namespace weft::nccl
