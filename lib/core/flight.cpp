#include "core/flight.h"

#include <algorithm>

namespace weft {

std::vector<FlightOperation> FlightRing::operations(uint64_t next, uint64_t first) const {
  const uint64_t kept = std::min<uint64_t>(next - first, entries_.size());
  std::vector<FlightOperation> out;
  out.reserve(kept);
  for (uint64_t slot = next - kept; slot != next; slot++)
    out.push_back(entries_[slot & (entries_.size() - 1)]);
  return out;
}

}  // namespace weft
