// Creates the communicator of the survivors of a failed one: the survivors agree on the members and create
// it. If another rank is lost meanwhile, they start again. Called by lib/bootstrap on the program's thread.
#pragma once

#include <functional>
#include <memory>

#include "comm/comm.h"
#include "transport/exchange.h"

namespace weft {

struct ShrinkOptions {
  int64_t timeout_ms = 0;    // default: the communicator's init timeout
  bool last_of_two = false;  // of two ranks, one may continue alone
};

// Creates the communicator of a generation; collective over the exchange's ranks.
using CreateGeneration = std::function<Status(Exchange& exchange, const Generation& generation,
                                              Deadline deadline, std::shared_ptr<Comm>* comm)>;

// Creates the communicator of the survivors. Collective over them. kState: the communicator works, or was
// shrunk already; kMinority; kTimeout names the ranks that did not call; kPeerFailed: the others continue
// without this rank; or the reason why it could not be created.
Status shrink(const std::shared_ptr<Comm>& failed, const ShrinkOptions& options, const CreateGeneration& form,
              std::shared_ptr<Comm>* survivors);

}  // namespace weft
