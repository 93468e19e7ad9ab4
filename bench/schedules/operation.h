// The schedules of one collective operation, as a lane of lib/coll builds them.
#pragma once

#include <string_view>
#include <vector>

#include "coll/algorithm.h"
#include "coll/schedule.h"

namespace weft::bench {

// One operation among `size` ranks, with elements of `element` bytes. count: as in CollectiveArgs.
struct Operation {
  const coll::Algorithm* algorithm = nullptr;
  int size = 1;
  uint64_t count = 0;
  uint64_t element = 4;
};

// Returns the algorithm of the table. Throws std::invalid_argument, which lists the choices.
const coll::Algorithm& find_algorithm(std::string_view collective, std::string_view name);

// Returns one rank's schedule, with its handshake if the lane adds one (TransportLane::build). Root is rank
// 0.
coll::Schedule schedule_of(const Operation& operation, int rank);

// Returns the bytes that a work reads and writes in memory.
uint64_t touched_bytes(const coll::Work& work, uint64_t element);

// Bytes of a message beside its data: the header that names the operation (framed/wire.h).
inline constexpr uint64_t kHeaderBytes = 96;

}  // namespace weft::bench
