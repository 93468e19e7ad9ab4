// Device buffers over collectives that know host memory alone: an operation is cut into chunks, and each is
// copied into pinned memory, carried out there, and copied back, three of them at a time, so that copies and
// transfers overlap. Operations on host memory pass through. Made by whoever forms a communicator
// (lib/form.cpp). Threads: as core/collectives.h says.
#pragma once

#include <cstdint>
#include <memory>

#include "core/collectives.h"

namespace weft {

// rank is the one of the communicator. slot_bytes: of pinned memory for each chunk under way, at least 64
// KiB; of a lane and device that have had an operation on device memory, three.
inline constexpr uint64_t kStagingSlotBytes = uint64_t{4} << 20;
std::unique_ptr<Collectives> staged(std::unique_ptr<Collectives> inner, int rank, int size,
                                    uint64_t slot_bytes = kStagingSlotBytes);

}  // namespace weft
