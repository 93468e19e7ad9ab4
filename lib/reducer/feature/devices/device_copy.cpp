#include "reducer/feature/devices/devices.h"

#include "base/text.h"
#include "reducer/bucket/copy_in.h"
#include "reducer/state.h"

namespace weft {
namespace {

// Adds the gradient of a local step, unless the program adds up.
class DeviceSum final : public CopyIn {
 public:
  const char* name() const override { return "add on the device"; }
  void copy(ReducerState& s, const Arrival& arrival) override {
    if (!s.copy || s.accumulation != WEFT_ACCUMULATION_REDUCER) return;
    const Buckets::Place& place = arrival.place;
    const CopyArgs args{static_cast<const std::byte*>(arrival.given.data),
                        place.memory,
                        place.count,
                        place.dtype,
                        place.dtype,
                        1.0};
    const Status added = s.devices->accumulate(place.bucket, arrival.param, args, s.holds_sum(arrival.param));
    if (!added.ok()) fail_arrival(s, arrival.param, added);
  }
};

// The step fetches the gradient.
class DeviceNote final : public CopyIn {
 public:
  const char* name() const override { return "note the address"; }
  void copy(ReducerState& s, const Arrival& arrival) override {
    s.gradients[arrival.param] = static_cast<std::byte*>(arrival.given.data);
    s.devices->take(arrival.param, arrival.step.stamp());
  }
};

}  // namespace

void add_device_copies(ReducerState* s) {
  if (!s->devices) return;
  CopyIn* const note = s->copy_ins.make<DeviceNote>();
  CopyIn* const sum = s->copy_ins.make<DeviceSum>();
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    if (!s->buckets->place(i).on_device) continue;
    s->copy_ins.set_all(i, note);
    s->copy_ins.set(StepKind::kLocal, i, sum);
  }
}

namespace {

void add_device_works(ReducerState* s) {
  add_fetch_work(s);
  add_device_return_work(s);
}

}  // namespace

const StepFeature kDevices{.copies = add_device_copies, .works = add_device_works};

}  // namespace weft
