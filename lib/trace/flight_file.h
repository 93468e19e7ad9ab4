// A flight record (engine/flight.h) as a file: JSON, which `weft trace explain` reads (tools/weft/flight.h).
// Threads: any thread.
#pragma once

#include <string>

#include "base/status.h"
#include "engine/flight.h"

namespace weft {

inline constexpr int kFlightFormat = 1;
// Size limit of a file: if there are many lanes, only their last operations are written.
inline constexpr size_t kMaxFlightBytes = 4 << 20;

std::string flight_text(const FlightRecord& record);
// Returns "weft-00c0ffee00c0ffee-rank3.json".
std::string flight_name(const FlightRecord& record);

// Writes the record into the folder, which is created if absent; replaces a file of the same name. kSystem.
Status write_flight(const FlightRecord& record, const std::string& folder);

}  // namespace weft
