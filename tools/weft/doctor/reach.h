// Tries which host can connect to which address of the others, and whether data passes.
#pragma once

#include "facts.h"
#include "transport/exchange.h"

namespace doctor {

// Collective over the exchange's ranks; mine: this rank's facts. The first rank of each host tries every
// address of every other host, for at most kTryMs each. Appends all attempts of all ranks. Listens on a port
// that the system chooses, and talks only to clients that know a number drawn for this call, which ranks send
// each other over the exchange. Its messages over the exchange are short: they arrive where large packets
// are dropped, unless there are many hosts.
weft::Status try_addresses(weft::Exchange& exchange, const Facts& mine, weft::Deadline deadline,
                           std::vector<Reach>* attempts);

inline constexpr int64_t kTryMs = 3000;  // as long as a rank tries one address when it creates a communicator

}  // namespace doctor
