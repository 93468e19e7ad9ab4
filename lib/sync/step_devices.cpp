// Buckets with gradients on devices: copies results back. Called from Step::poll. Nothing here waits: the
// next poll asks the device again. Also streams of the program that wait for results.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "core/context.h"
#include "sync/feature/devices/bucket_copies.h"
#include "sync/step.h"

namespace weft {
void Step::hold(const DeviceCall& call, uint32_t stamp, uint32_t bucket) {
  const std::lock_guard lock(held_mutex_);
  held_.push_back({call, bucket, std::this_thread::get_id()});
  holding_.store(true, std::memory_order_release);
  // The step or the bucket may have ended just before this lock was taken, when the new entry was not in
  // held_ yet. Nothing would release that entry later, so it is released here. A step with another stamp is
  // over as well.
  if (finished(stamp) || s_.readiness->step().stamp() != stamp) {
    release_locked(kWholeStep);
  } else if (bucket != kWholeStep && done(bucket, stamp)) {
    release_locked(bucket);
  }
}

bool Step::holds(int device, DeviceStream stream, uint32_t bucket) {
  const std::lock_guard lock(held_mutex_);
  return std::any_of(held_.begin(), held_.end(), [&](const Held& held) {
    return held.call.device == device && held.call.stream == stream &&
           held.thread == std::this_thread::get_id() && (held.bucket == bucket || held.bucket == kWholeStep);
  });
}

void Step::release(uint32_t bucket) {
  const std::lock_guard lock(held_mutex_);
  release_locked(bucket);
}

// Lets the streams that wait for this bucket continue; kWholeStep: all streams that wait.
void Step::release_locked(uint32_t bucket) {
  const auto goes_on = [&](Held& held) {
    if (bucket != kWholeStep && held.bucket != bucket) return false;
    s_.comm->context().gate().leave(&held.call);
    return true;
  };
  held_.erase(std::remove_if(held_.begin(), held_.end(), goes_on), held_.end());
  if (held_.empty()) holding_.store(false, std::memory_order_release);
}

}  // namespace weft
