// Collectives over any Transport, made during group setup (lib/bootstrap.cpp) for a backend that moves
// messages. Threads: as transport/collectives.h says.
#pragma once

#include <memory>

#include "base/clock.h"
#include "coll/select.h"
#include "device/allocator.h"
#include "device/device.h"
#include "transport/collectives.h"
#include "transport/transport.h"

namespace weft {

// Makes the collectives. host and clock outlive the result, and lanes do not outlive it. arena: see
// BackendArgs.
std::unique_ptr<Collectives> over_transport(std::unique_ptr<Transport> transport, int rank, int size,
                                            const DeviceOps& host, Clock& clock,
                                            const coll::Forced& forced = {},
                                            const HostAllocator& allocator = {},
                                            std::shared_ptr<Arena> arena = nullptr);

}  // namespace weft
