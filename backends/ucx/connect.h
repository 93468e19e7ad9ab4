// Connecting the ranks of a communicator over UCX. Called while it is formed, on the program's thread.
#pragma once

#include <memory>

#include "core/backend.h"

namespace weft::ucx {

// Collective over args.exchange. Ends when every rank has heard from every other one over UCX.
Status connect(const BackendArgs& args, std::unique_ptr<Transport>* transport);

}  // namespace weft::ucx
