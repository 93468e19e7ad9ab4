// Device buffers over collectives that only support host memory. An operation is cut into chunks. Each chunk
// is copied into pinned memory, executed there, and copied back. Three chunks are in flight, so that copies
// and transfers overlap. Operations on host memory pass through. Made during group setup (lib/bootstrap.cpp).
// Threads: as transport/collectives.h says.
#pragma once

#include <cstdint>
#include <memory>

#include "transport/collectives.h"

namespace weft {

// Wraps `inner`. rank is the communicator's. slot_bytes: pinned memory of one chunk, at least 64 KiB. Each
// pair of lane and device that has executed an operation on device memory holds three.
inline constexpr uint64_t kStagingSlotBytes = uint64_t{4} << 20;
std::unique_ptr<Collectives> staged(std::unique_ptr<Collectives> inner, int rank, int size,
                                    uint64_t slot_bytes = kStagingSlotBytes);

}  // namespace weft
