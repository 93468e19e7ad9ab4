// The host's DeviceOps, for the best instruction set that this processor has. Called by whoever makes a
// context or a backend without one. Threads: any thread; the operations run on the calling thread.
#pragma once

#include "core/device.h"

namespace weft {

// Constant tables, one an instruction set; every one of them gives the same bits.
const DeviceOps& host_ops();

}  // namespace weft
