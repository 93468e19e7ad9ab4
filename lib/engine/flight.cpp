#include "engine/flight.h"

#include <algorithm>

#include "base/text.h"

namespace weft {

std::vector<FlightOperation> FlightRing::operations(uint64_t next, uint64_t first) const {
  const uint64_t kept = std::min<uint64_t>(next - first, entries_.size());
  std::vector<FlightOperation> out;
  out.reserve(kept);
  for (uint64_t slot = next - kept; slot != next; slot++)
    out.push_back(entries_[slot & (entries_.size() - 1)]);
  return out;
}

std::string FlightMessage::text() const {
  return cat(sends ? "send_tagged " : "recv_tagged ", name(dtype), " x ", count, sends ? " to " : " from ",
             peer == kAnyPeer ? std::string("any rank") : cat("rank ", peer), " with ",
             tag == kAnyTag ? std::string("any tag") : cat("tag ", tag));
}

}  // namespace weft
