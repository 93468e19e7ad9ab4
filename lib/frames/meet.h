// Connecting the ranks of a communicator over links, one of each rank. Called while it is formed, on the
// program's thread.
#pragma once

#include <memory>

#include "core/backend.h"
#include "frames/link.h"

namespace weft::frames {

// Collective over args.exchange. Ends when every rank has heard from every other one over its link.
Status meet_over(std::unique_ptr<Link> link, const BackendArgs& args, std::unique_ptr<Transport>* transport);

}  // namespace weft::frames
