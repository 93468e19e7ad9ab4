// The communicator of the survivors of a failed one: agree on who they are, form, and again if another one
// is lost meanwhile. Called by lib/form on the program's thread.
#pragma once

#include <functional>
#include <memory>

#include "core/comm.h"
#include "core/exchange.h"

namespace weft {

struct ShrinkOptions {
  int64_t timeout_ms = 0;    // default: the communicator's init timeout
  bool last_of_two = false;  // of two ranks one may go on alone
};

// Makes the communicator of a generation; collective over the exchange's ranks.
using FormGeneration = std::function<Status(Exchange& exchange, const Descent& descent, Deadline deadline,
                                            std::shared_ptr<Comm>* comm)>;

// Collective over the survivors. kState while the communicator works, or if it was shrunk already;
// kMinority; kTimeout naming who did not call; kPeerFailed if the others went on without this rank; or why
// it could not be formed.
Status shrink(const std::shared_ptr<Comm>& failed, const ShrinkOptions& options, const FormGeneration& form,
              std::shared_ptr<Comm>* survivors);

}  // namespace weft
