// The answer of a process to `weft status`.
#pragma once

#include "capi/handles.h"

namespace weft::capi {

// Starts the server of a new context, unless the environment refuses it. A server that cannot start, because
// the process has no descriptors left for example, is a line of the log alone.
void start_status(weft_context& context);

}  // namespace weft::capi
