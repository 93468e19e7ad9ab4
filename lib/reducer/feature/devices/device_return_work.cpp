#include "reducer/feature/devices/devices.h"

#include <cstring>

#include "reducer/bucket/bucket_work.h"
#include "reducer/bucket/results.h"
#include "reducer/feature/devices/bucket_copies.h"

namespace weft {
namespace {

class DeviceReturnWork final : public BucketWork {
 public:
  explicit DeviceReturnWork(const ReducerState& state) : s_(state) {}

  const char* name() const override { return "return to the device"; }
  void begin(const StepContext& /*step*/, uint32_t /*bucket*/) override { returning_ = false; }
  Progress piece(StepContext& step, uint32_t bucket) override {
    Status status;
    if (!returning_) {
      const bool left_alone = s_.copy && (step.buckets[bucket].skipped || step.discarded);
      if (step.sealed || left_alone) return Progress::kDone;
      status = copy_out(step, bucket);
      returning_ = status.ok();
    }
    bool done = false;
    if (status.ok()) status = s_.devices->query(bucket, DeviceGradients::Way::kOut, &done);
    if (!status.ok()) fail_on_device(s_, step, bucket, "results", status);
    if (!status.ok() || done) returning_ = false;
    return done && status.ok() ? Progress::kDone : Progress::kWaiting;
  }

 private:
  Status copy_out(const StepContext& step, uint32_t bucket);

  const ReducerState& s_;
  bool returning_ = false;  // the device is copying
};

Status DeviceReturnWork::copy_out(const StepContext& step, uint32_t bucket) {
  DeviceGradients& devices = *s_.devices;
  const PlannedBucket& planned = s_.plan.buckets[bucket];
  // A bucket that was not communicated has zeros in its place.
  const bool skipped = step.buckets[bucket].skipped;
  const Dtype has = skipped ? planned.dtype : s_.comm_dtype(bucket);
  const uint64_t element = dtype_size(has);
  std::byte* const result =
      skipped ? s_.buckets->buffers()[bucket] : const_cast<std::byte*>(result_of(s_, bucket));
  devices.clear(bucket);
  for (size_t i = 0; i < planned.params.size(); i++) {
    const uint32_t param = planned.params[i];
    const Buckets::Place& place = s_.buckets->place(param);
    const bool nowhere = step.buckets[bucket].absent > 0 && absent_everywhere(s_, step, param);
    std::byte* const gradient = s_.gradients[param];
    if (gradient == nullptr || place.count == 0 || (s_.copy && nowhere)) continue;
    std::byte* const from = result + planned.offsets[i] * element;
    // The hook may have changed the zeros of an absent parameter; device buckets have no hook stages.
    if (nowhere && (skipped || !s_.device_bucket(bucket))) std::memset(from, 0, place.count * element);
    const Owned mine = received_part(s_, param);
    for_each_run(s_, place, mine.first, mine.count, [&](uint64_t to, uint64_t at, uint64_t count) {
      devices.add(bucket, from + at * element, gradient + to * place.gradient_bytes, count, element,
                  place.gradient_bytes);
    });
  }
  return devices.launch(bucket, DeviceGradients::Way::kOut, has, planned.gradients, step.factor);
}

}  // namespace

void add_device_return_work(ReducerState* s) {
  if (!s->devices) return;
  BucketWork* const work = s->works.make<DeviceReturnWork>(*s);
  for (uint32_t b = 0; b < s->works.give_back.size(); b++) {
    if (s->devices->has(b)) s->works.give_back[b].push_back(work);
  }
}

}  // namespace weft
