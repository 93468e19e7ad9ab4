// Connects the ranks of a communicator over links, one link on each rank. Called during group setup, on the
// thread that creates the communicator.
#pragma once

#include <memory>

#include "framed/link.h"
#include "transport/backend.h"

namespace weft::framed {

// Creates a FramedTransport over `link` and connects it to all ranks. Collective over args.exchange. Returns
// after every rank has received a frame from every other rank over its link, or with an error.
Status connect_over(std::unique_ptr<Link> link, const BackendArgs& args,
                    std::unique_ptr<Transport>* transport);

}  // namespace weft::framed
