// Buckets with gradients on devices: copies gradients into a bucket before it is communicated, and results
// back. Called from Step::poll. Nothing here waits: the next poll asks the device again.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "core/context.h"
#include "sync/step.h"

namespace weft {
namespace {

// Calls move(offset in the gradient, offset in the place, elements). Views have the layout of their places.
template <class Move>
void for_each_run(const ReducerState& s, const Buckets::Place& place, uint64_t first, uint64_t count,
                  Move&& move) {
  if (s.copy) return place.layout->for_each_run(first, count, move);
  if (count > 0) move(first, first, count);
}

}  // namespace

// Copies the gradients into the next bucket to be launched, once the program's streams have produced them.
// True when the bucket has them.
bool Step::fetch(uint32_t bucket) {
  DeviceGradients& devices = *s_.devices;
  if (fetch_ == Fetch::kNone) fetch_ = Fetch::kAwaited;
  bool done = fetch_ == Fetch::kDone;
  Status status;
  if (fetch_ == Fetch::kAwaited) {
    status = devices.arrived(bucket, step_.stamp, &done);
    if (status.ok() && done) {
      status = copy_in(bucket);
      if (status.ok()) fetch_ = Fetch::kCopied;
      done = false;
    }
  } else if (fetch_ == Fetch::kCopied) {
    status = devices.query(bucket, DeviceGradients::Way::kIn, &done);
    if (!status.ok() || done) fetch_ = Fetch::kDone;
  }
  if (!status.ok()) device_failed(bucket, "gradients", status);
  device_waits_ |= !done;
  return done && status.ok();
}

Status Step::copy_in(uint32_t bucket) {
  if (s_.device_bucket(bucket)) return copy_to_device(bucket);
  DeviceGradients& devices = *s_.devices;
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  const Dtype held = s_.buckets->held(bucket);
  devices.clear(bucket);
  for (const uint32_t param : planned.params) {
    const Buckets::Place& place = s_.buckets->place(param);
    if (!devices.taken(param, step_.stamp) || place.count == 0) continue;
    const std::byte* const gradient = s_.gradients[param];
    if (s_.holds_sum(param)) {
      WEFT_TRY(devices.add_into(bucket, {gradient, place.memory, place.count, held, held, 1.0}));
      continue;
    }
    for_each_run(s_, place, 0, place.count, [&](uint64_t from, uint64_t to, uint64_t count) {
      devices.add(bucket, gradient + from * place.gradient_bytes, place.memory + to * place.element_bytes,
                  count, place.gradient_bytes, place.element_bytes);
    });
  }
  return devices.launch(bucket, DeviceGradients::Way::kIn, planned.gradients, held, 1.0);
}

// Like copy_in, into a device bucket, in the communication dtype and scaled by the rank's weight. It also
// copies what is in host memory: sums of local steps, and zeros.
Status Step::copy_to_device(uint32_t bucket) {
  DeviceGradients& devices = *s_.devices;
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  const Dtype held = s_.buckets->held(bucket), comm_dtype = s_.comm_dtype(bucket);
  const uint64_t element = dtype_size(comm_dtype);
  const double scale =
      s_.hook->cast_dtype() ? step_.handshake.factor / divisor(false) : step_.handshake.factor;
  const auto comes = [&](uint32_t param) {  // its contribution is the gradient alone
    return devices.taken(param, step_.stamp) && !s_.holds_sum(param);
  };
  const auto to = [&](size_t i) { return s_.device_buckets->memory(bucket) + planned.offsets[i] * element; };
  devices.clear(bucket);
  for (size_t i = 0; i < planned.params.size(); i++) {
    const uint32_t param = planned.params[i];
    const Buckets::Place& place = s_.buckets->place(param);
    if (comes(param) || place.count == 0) continue;
    if (devices.taken(param, step_.stamp)) {
      WEFT_TRY(devices.add_into(bucket, {s_.gradients[param], place.memory, place.count, held, held, 1.0}));
    }
    devices.add(bucket, place.memory, to(i), place.count, place.element_bytes, element);
  }
  WEFT_TRY(devices.launch(bucket, DeviceGradients::Way::kIn, held, comm_dtype, scale));
  for (size_t i = 0; i < planned.params.size(); i++) {
    const uint32_t param = planned.params[i];
    const Buckets::Place& place = s_.buckets->place(param);
    if (!comes(param) || place.count == 0) continue;
    for_each_run(s_, place, 0, place.count, [&](uint64_t from, uint64_t at, uint64_t count) {
      devices.add(bucket, s_.gradients[param] + from * place.gradient_bytes, to(i) + at * element, count,
                  place.gradient_bytes, element);
    });
  }
  return devices.launch(bucket, DeviceGradients::Way::kIn, planned.gradients, comm_dtype, scale);
}

// Copies the results of a bucket to its gradients. True when they are there.
bool Step::give_back(uint32_t bucket) {
  Status status;
  if (!returning_) {
    const std::lock_guard lock(copy_mutex_);
    const bool left_alone = s_.copy && (running_[bucket].skipped || (s_.norms && s_.norms->decision.skipped));
    if (sealed_ || left_alone) return true;
    status = copy_out(bucket);
    returning_ = status.ok();
  }
  bool done = false;
  if (status.ok()) status = s_.devices->query(bucket, DeviceGradients::Way::kOut, &done);
  if (!status.ok()) device_failed(bucket, "results", status);
  if (!status.ok() || done) returning_ = false;
  device_waits_ |= returning_;
  return done && status.ok();
}

Status Step::copy_out(uint32_t bucket) {
  DeviceGradients& devices = *s_.devices;
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  // A bucket that was not communicated has zeros in its place.
  const bool skipped = running_[bucket].skipped;
  const Dtype has = skipped ? planned.dtype : s_.comm_dtype(bucket);
  const uint64_t element = dtype_size(has);
  std::byte* const result =
      skipped ? s_.buckets->buffers()[bucket] : const_cast<std::byte*>(result_of(bucket));
  devices.clear(bucket);
  for (size_t i = 0; i < planned.params.size(); i++) {
    const uint32_t param = planned.params[i];
    const Buckets::Place& place = s_.buckets->place(param);
    const bool nowhere = running_[bucket].absent > 0 && absent_everywhere(param);
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

// True when no device copies gradients into the bucket any more. Called after a failure.
bool Step::devices_idle() {
  if (fetch_ != Fetch::kCopied) return true;
  bool over = false;
  // A device that fails has stopped copying.
  return !s_.devices->query(step_.launched, DeviceGradients::Way::kIn, &over).ok() || over;
}

bool Step::fetch_rest(Deadline deadline) {
  for (uint32_t b = step_.launched; b < bucket_count(); b++) {
    const bool fetched = b == step_.launched && fetch_ >= Fetch::kCopied;
    if (!on_device(b) || fetched) continue;
    bool done = false;
    Status status;
    const auto came = [&] {
      status = s_.devices->arrived(b, step_.stamp, &done);
      return done || !status.ok();
    };
    const auto copied = [&] {
      status = s_.devices->query(b, DeviceGradients::Way::kIn, &done);
      return done || !status.ok();
    };
    if (!engine_.wait(came, deadline) || !status.ok() || !copy_in(b).ok()) return false;
    if (!engine_.wait(copied, deadline) || !status.ok()) return false;
  }
  return true;
}

void Step::device_failed(uint32_t bucket, const char* what, const Status& status) {
  s_.comm->fail(status
                    .with_prefix(cat("rank ", s_.comm->rank(), ", step ", step_.begun.number, ", ", what,
                                     " of ", s_.plan.text(s_.manifest, bucket), " on CUDA device ",
                                     s_.devices->device(bucket), ": "))
                    .with_ranks({s_.comm->rank()})
                    .with_step(step_.begun.number));
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
