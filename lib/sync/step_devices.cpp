// Buckets with gradients on devices: copies results back. Called from Step::poll. Nothing here waits: the
// next poll asks the device again. Also streams of the program that wait for results.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "core/context.h"
#include "sync/feature/devices/bucket_copies.h"
#include "sync/step.h"

namespace weft {
// Copies the results of a bucket to its gradients. True when they are there.
bool Step::give_back(uint32_t bucket) {
  Status status;
  if (!returning_) {
    const std::lock_guard lock(copy_mutex_);
    const bool left_alone =
        s_.copy && (step_.buckets[bucket].skipped || (s_.norms && s_.norms->decision.skipped));
    if (sealed_ || left_alone) return true;
    status = copy_out(bucket);
    returning_ = status.ok();
  }
  bool done = false;
  if (status.ok()) status = s_.devices->query(bucket, DeviceGradients::Way::kOut, &done);
  if (!status.ok()) fail_on_device(s_, step_, bucket, "results", status);
  if (!status.ok() || done) returning_ = false;
  device_waits_ |= returning_;
  return done && status.ok();
}

Status Step::copy_out(uint32_t bucket) {
  DeviceGradients& devices = *s_.devices;
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  // A bucket that was not communicated has zeros in its place.
  const bool skipped = step_.buckets[bucket].skipped;
  const Dtype has = skipped ? planned.dtype : s_.comm_dtype(bucket);
  const uint64_t element = dtype_size(has);
  std::byte* const result =
      skipped ? s_.buckets->buffers()[bucket] : const_cast<std::byte*>(result_of(bucket));
  devices.clear(bucket);
  for (size_t i = 0; i < planned.params.size(); i++) {
    const uint32_t param = planned.params[i];
    const Buckets::Place& place = s_.buckets->place(param);
    const bool nowhere = step_.buckets[bucket].absent > 0 && absent_everywhere(param);
    std::byte* const gradient = s_.gradients[param];
    if (gradient == nullptr || place.count == 0 || (s_.copy && nowhere)) continue;
    std::byte* const from = result + planned.offsets[i] * element;
    // The hook may have changed the zeros of an absent parameter; device buckets have no hook stages.
    if (nowhere && (skipped || !s_.device_bucket(bucket))) std::memset(from, 0, place.count * element);
    const Owned mine = owned(param);
    for_each_run(s_, place, mine.first, mine.count, [&](uint64_t to, uint64_t at, uint64_t count) {
      devices.add(bucket, from + at * element, gradient + to * place.gradient_bytes, count, element,
                  place.gradient_bytes);
    });
  }
  return devices.launch(bucket, DeviceGradients::Way::kOut, has, planned.gradients, factor());
}

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
