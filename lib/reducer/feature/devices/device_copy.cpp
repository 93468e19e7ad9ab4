#include "reducer/feature/devices/devices.h"

#include "base/text.h"
#include "comm/context.h"
#include "reducer/bucket/copy_in.h"
#include "reducer/feature/devices/device_ready.h"
#include "reducer/state.h"

namespace weft {
namespace {

// Adds the gradient of a local step, unless the program adds up.
class DeviceSum final : public CopyIn {
 public:
  const char* name() const override { return "add on the device"; }
  void copy(ReducerState& s, const Arrival& arrival) override {
    if (!s.copy || s.options.accumulation != WEFT_ACCUMULATION_REDUCER) return;
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

class DeviceCheck final : public GradientCheck {
 public:
  Status check(ReducerState& s, uint64_t param, const weft_stream* stream, StepWord step,
               Given* given) override {
    const Status comes = come_from_device(s, param, &given->data, stream, step);
    return comes.ok() ? comes : comes.with_prefix(cat(s.manifest.named(param), ": "));
  }
};

// For a gradient in host memory, in a program that uses devices.
class HostCheck final : public GradientCheck {
 public:
  explicit HostCheck(GradientCheck* check) : check_(*check) {}

  Status check(ReducerState& s, uint64_t param, const weft_stream* stream, StepWord step,
               Given* given) override {
    WEFT_TRY(check_.check(s, param, stream, step, given));
    if (!s.beside_devices.load(std::memory_order_relaxed) || given->data == nullptr) return {};
    const Status found = check_gradient_memory(s, param, given->data);
    return found.ok() ? found : found.with_prefix(cat(s.manifest.named(param), ": "));
  }

 private:
  GradientCheck& check_;
};

// Lets copies of a program that may use devices check in which memory a gradient is.
void add_host_checks(ReducerState* s) {
  if (!s->copy || s->comm->context().accelerator() == nullptr) return;
  GradientCheck* host = nullptr;
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    if (!has_bucket(*s, i) || s->manifest.params[i].sparse()) continue;
    if (host == nullptr) host = s->copy_ins.make_check<HostCheck>(s->copy_ins.of(i).check);
    s->copy_ins.change(i, [&](GradientWay& way) { way.set_check(host); });
  }
}

}  // namespace

void add_device_copies(ReducerState* s) {
  add_host_checks(s);
  if (!s->devices) return;
  GradientCheck* const check = s->copy_ins.make_check<DeviceCheck>();
  CopyIn* const note = s->copy_ins.make<DeviceNote>();
  CopyIn* const sum = s->copy_ins.make<DeviceSum>();
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    const bool counted = has_bucket(*s, i) && s->devices->has(s->plan.bucket_of[i]);
    const bool on_device = s->buckets->place(i).on_device;
    if (!counted && !on_device) continue;
    s->copy_ins.change(i, [&](GradientWay& way) {
      if (counted) way.count = arrive_on_device;
      if (!on_device) return;
      way.set_check(check);
      way.copied = s->copy;
      way.copies.fill(note);
      way.set(StepKind::kLocal, sum);
    });
  }
}

}  // namespace weft
