// The host's DeviceOps, for the best instruction set of this processor. Used wherever a context or a backend
// without one is created. Threads: any thread; the operations run on the calling thread.
#pragma once

#include "device/device.h"

namespace weft {

// Returns a constant table; there is one for each instruction set. All tables compute the same bits.
const DeviceOps& host_ops();

}  // namespace weft
