// Collectives of ranks on several hosts: those of each host execute them among themselves (shm, or nccl where
// buffers lie on devices), and messages go between hosts (ucx). Called by whoever forms a communicator
// (lib/form.cpp), on the program's thread.
#pragma once

#include <memory>

#include "coll/select.h"
#include "core/backend.h"

namespace weft::coll {

// Collective over args.exchange. Of a composed backend, whose local one executes collectives, and whose
// across moves messages; args' borrowed things outlive the result, and lanes do not outlive it.
Status make_hierarchical(const Backend& composed, const BackendArgs& args, const Forced& forced,
                         std::unique_ptr<Collectives>* collectives);

// Whether it is worth it: there are several hosts, and ranks that share one. Collective over args.exchange.
Status spans_shared_hosts(const BackendArgs& args, bool* yes);

}  // namespace weft::coll
