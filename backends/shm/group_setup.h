// Creates a Group in a series of all-gathers. Every rank publishes its capabilities. Rank 0 creates the file
// of all segments and sends it to the others, which map it. If one rank fails, all ranks fail with an error
// that names it. Called on the thread that makes the communicator.
#pragma once

#include <memory>

#include "base/status.h"
#include "group.h"
#include "transport/backend.h"

namespace weft::shm {

// Creates the group. Collective over args.exchange: either every rank gets a group or none does.
Status make_group(const BackendArgs& args, std::shared_ptr<Group>* group);

// Sets *all if all ranks of the exchange share this host's memory. Collective.
Status all_local(const BackendArgs& args, bool* all);

}  // namespace weft::shm
