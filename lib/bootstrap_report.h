// The line of the log that says what was chosen for a new communicator, and why.
#pragma once

#include <string>
#include <vector>

#include "bootstrap_wire.h"
#include "comm/comm.h"
#include "registry.h"

namespace weft {

// Returns the line. chosen: the backend; transports: Collectives::transports(). Probes backends again.
std::string creation_text(const Registry& registry, const std::vector<Offer>& offers,
                          const CommOptions& options, int rank, const Backend& chosen,
                          const std::string& transports);

}  // namespace weft
