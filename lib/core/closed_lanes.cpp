#include "core/closed_lanes.h"

#include <algorithm>
#include <set>

namespace weft {
namespace {

using Told = std::set<std::pair<uint32_t, uint64_t>>;

// Takes a rank's part off its message; a message that ends before is empty, and tells of nothing.
Told read(Bytes* message) {
  ByteReader reader(*message);
  Told told;
  const auto lanes = reader.get<uint32_t>();
  for (uint32_t i = 0; i < lanes && reader.ok(); i++) {
    const auto id = reader.get<uint32_t>();
    told.emplace(id, reader.get<uint64_t>());
  }
  if (!reader.ok()) {
    message->clear();
    return {};
  }
  const size_t part = sizeof lanes + lanes * (sizeof(uint32_t) + sizeof(uint64_t));
  message->erase(message->begin(), message->begin() + static_cast<ptrdiff_t>(part));
  return told;
}

}  // namespace

void ClosedLanes::write(ByteWriter* message) const {
  message->put(static_cast<uint32_t>(kept_.size()));
  for (const auto& [id, lane] : kept_) message->put(id).put(lane.next_slot);
}

void ClosedLanes::compare(std::vector<Bytes>* messages) {
  Told common;
  for (const auto& [id, lane] : kept_) common.emplace(id, lane.next_slot);
  for (Bytes& message : *messages) {
    const Told told = read(&message);
    std::erase_if(common, [&](const auto& lane) { return !told.contains(lane); });
  }
  everywhere_.clear();
  for (const auto& [id, slot] : common) everywhere_.push_back(id);
  std::reverse(everywhere_.begin(), everywhere_.end());
}

bool ClosedLanes::take(uint32_t* id, Kept* lane) {
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
