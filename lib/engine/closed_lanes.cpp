#include "engine/closed_lanes.h"

#include <algorithm>

namespace weft {

void ClosedLanes::write(ByteWriter* message) const {
  message->put(static_cast<uint32_t>(kept_.size()));
  for (const auto& [id, lane] : kept_) message->put(id).put(lane.next_slot);
}

ClosedLanes::Published ClosedLanes::read(ByteReader* message) {
  Published published;
  const auto lanes = message->get<uint32_t>();
  for (uint32_t i = 0; i < lanes && message->ok(); i++) {
    const auto id = message->get<uint32_t>();
    published.emplace(id, message->get<uint64_t>());
  }
  return message->ok() ? published : Published();
}

void ClosedLanes::compare(const std::vector<Published>& published) {
  everywhere_.clear();
  if (published.empty()) return;
  for (const auto& [id, lane] : kept_) {
    const std::pair<uint32_t, uint64_t> mine(id, lane.next_slot);
    const auto closed = [&](const Published& theirs) { return theirs.contains(mine); };
    if (std::all_of(published.begin(), published.end(), closed)) everywhere_.push_back(id);
  }
  std::reverse(everywhere_.begin(), everywhere_.end());
}

bool ClosedLanes::take(uint32_t* id, Entry* lane) {
  if (everywhere_.empty()) return false;
  *id = everywhere_.back();
  everywhere_.pop_back();
  const auto found = kept_.find(*id);
  if (found == kept_.end()) return false;
  *lane = std::move(found->second);
  kept_.erase(found);
  return true;
}

}  // namespace weft
