// Collectives of ranks on several hosts. The ranks of each host execute collectives among themselves (shm, or
// nccl for device buffers), and messages go between hosts (ucx). Called during group setup
// (lib/bootstrap.cpp), on the program's thread.
#pragma once

#include <memory>

#include "coll/select.h"
#include "transport/backend.h"

namespace weft::coll {

// Makes the collectives of a composed backend: `local` executes collectives and `across` moves messages.
// Collective over args.exchange. What args borrows outlives the result, and lanes do not outlive the result.
Status make_hierarchical(const Backend& composed, const BackendArgs& args, const Forced& forced,
                         std::unique_ptr<Collectives>* collectives);

// Sets *yes if there are several hosts and some host has several ranks. Only then does a composed backend pay
// off. Collective over args.exchange.
Status spans_shared_hosts(const BackendArgs& args, bool* yes);

}  // namespace weft::coll
