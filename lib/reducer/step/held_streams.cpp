#include "reducer/step/held_streams.h"

#include <algorithm>

namespace weft {

void HeldStreams::add(const DeviceCall& call, uint32_t bucket) {
  const std::lock_guard lock(mutex_);
  streams_.push_back({call, bucket, std::this_thread::get_id()});
  any_.store(true, std::memory_order_release);
}

bool HeldStreams::has(int device, DeviceStream stream, uint32_t bucket) {
  const std::lock_guard lock(mutex_);
  return std::any_of(streams_.begin(), streams_.end(), [&](const Held& held) {
    return held.call.device == device && held.call.stream == stream &&
           held.thread == std::this_thread::get_id() && (held.bucket == bucket || held.bucket == kWholeStep);
  });
}

void HeldStreams::release(uint32_t bucket) {
  const std::lock_guard lock(mutex_);
  const auto goes_on = [&](Held& held) {
    if (bucket != kWholeStep && held.bucket != bucket) return false;
    gate_.leave(&held.call);
    return true;
  };
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(), goes_on), streams_.end());
  if (streams_.empty()) any_.store(false, std::memory_order_release);
}

}  // namespace weft
