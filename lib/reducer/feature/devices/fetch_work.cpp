#include "reducer/feature/devices/devices.h"

#include "comm/context.h"
#include "reducer/bucket/bucket_work.h"
#include "reducer/feature/devices/bucket_copies.h"

namespace weft {
namespace {

class FetchWork final : public BucketWork {
 public:
  explicit FetchWork(const ReducerState& state) : s_(state) {}

  const char* name() const override { return "fetch from the device"; }
  void begin(const StepContext& step, uint32_t bucket) override {
    at_ = At::kAwaited;
    bucket_ = bucket;
    stamp_ = step.stamp;
  }
  Progress piece(StepContext& step, uint32_t bucket) override;
  bool quiet() override {
    if (at_ != At::kCopied) return true;
    bool over = false;
    // A device that fails has stopped copying.
    return !s_.devices->query(bucket_, DeviceGradients::Way::kIn, &over).ok() || over;
  }
  const char* awaited() const override {
    return at_ == At::kAwaited ? " are not complete on the program's streams"
                               : " are being copied from their device";
  }
  bool bring(const StepContext& step, uint32_t bucket, Deadline deadline) override;

 private:
  // Where the gradients of the bucket are.
  enum class At : uint8_t { kAwaited, kCopied, kDone };

  Status copy_in(const StepContext& step, uint32_t bucket);
  Status copy_to_device(const StepContext& step, uint32_t bucket);

  const ReducerState& s_;
  At at_ = At::kDone;
  uint32_t bucket_ = 0;
  uint32_t stamp_ = 0;
};

Progress FetchWork::piece(StepContext& step, uint32_t bucket) {
  DeviceGradients& devices = *s_.devices;
  bool done = false;
  Status status;
  if (at_ == At::kAwaited) {
    status = devices.arrived(bucket, step.stamp, &done);
    if (status.ok() && done) {
      status = copy_in(step, bucket);
      if (status.ok()) at_ = At::kCopied;
    }
    done = false;
  } else {
    status = devices.query(bucket, DeviceGradients::Way::kIn, &done);
    if (!status.ok() || done) at_ = At::kDone;
  }
  if (!status.ok()) fail_on_device(s_, step, bucket, "gradients", status);
  return done && status.ok() ? Progress::kDone : Progress::kWaiting;
}

Status FetchWork::copy_in(const StepContext& step, uint32_t bucket) {
  if (s_.device_bucket(bucket)) return copy_to_device(step, bucket);
  DeviceGradients& devices = *s_.devices;
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  const Dtype held = s_.buckets->held(bucket);
  devices.clear(bucket);
  for (const uint32_t param : planned.params) {
    const Buckets::Place& place = s_.buckets->place(param);
    if (!devices.taken(param, step.stamp) || place.count == 0) continue;
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
Status FetchWork::copy_to_device(const StepContext& step, uint32_t bucket) {
  DeviceGradients& devices = *s_.devices;
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  const Dtype held = s_.buckets->held(bucket), comm_dtype = s_.comm_dtype(bucket);
  const uint64_t element = dtype_size(comm_dtype);
  const double scale =
      s_.hook->cast_dtype() ? step.handshake.factor / step.handshake.divisor : step.handshake.factor;
  const auto comes = [&](uint32_t param) {  // its contribution is the gradient alone
    return devices.taken(param, step.stamp) && !s_.holds_sum(param);
  };
  const auto to = [&](size_t i) { return s_.device_buckets->memory(bucket) + planned.offsets[i] * element; };
  devices.clear(bucket);
  for (size_t i = 0; i < planned.params.size(); i++) {
    const uint32_t param = planned.params[i];
    const Buckets::Place& place = s_.buckets->place(param);
    if (comes(param) || place.count == 0) continue;
    if (devices.taken(param, step.stamp)) {
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

bool FetchWork::bring(const StepContext& step, uint32_t bucket, Deadline deadline) {
  if (bucket == bucket_ && stamp_ == step.stamp && at_ != At::kAwaited) return true;
  Engine& engine = s_.comm->context().engine();
  bool done = false;
  Status status;
  const auto came = [&] {
    status = s_.devices->arrived(bucket, step.stamp, &done);
    return done || !status.ok();
  };
  const auto copied = [&] {
    status = s_.devices->query(bucket, DeviceGradients::Way::kIn, &done);
    return done || !status.ok();
  };
  if (!engine.wait(came, deadline) || !status.ok() || !copy_in(step, bucket).ok()) return false;
  return engine.wait(copied, deadline) && status.ok();
}

}  // namespace

void add_fetch_work(ReducerState* s) {
  if (!s->devices) return;
  BucketWork* const work = s->works.make<FetchWork>(*s);
  for (uint32_t b = 0; b < s->works.prepare.size(); b++) {
    if (s->devices->has(b)) s->works.prepare[b].push_back(work);
  }
}

}  // namespace weft
