#include "reducer/feature/devices/devices.h"

#include "base/text.h"
#include "reducer/bucket/copy_in.h"
#include "reducer/state.h"

namespace weft {
namespace {

class DeviceCopy final : public CopyIn {
 public:
  explicit DeviceCopy(ReducerState& state) : s_(state) {}
  void take(uint64_t param, const Given& given, StepWord step) override {
    if (step.local()) return add(param, given);
    s_.gradients[param] = static_cast<std::byte*>(given.data);
    s_.devices->take(param, step.stamp());
  }

 private:
  // Adds the gradient of a local step, unless the program adds up.
  void add(uint64_t param, const Given& given) {
    if (!s_.copy || s_.accumulation != WEFT_ACCUMULATION_REDUCER) return;
    const Buckets::Place& place = s_.buckets->place(param);
    const CopyArgs args{
        static_cast<const std::byte*>(given.data), place.memory, place.count, place.dtype, place.dtype, 1.0};
    const Status added = s_.devices->accumulate(place.bucket, param, args, s_.holds_sum(param));
    if (added.ok()) return;
    s_.comm->fail(added
                      .with_prefix(cat("rank ", s_.comm->rank(), ", parameter ", param, " ('",
                                       s_.manifest.params[param].name, "'): "))
                      .with_ranks({s_.comm->rank()}));
  }

  ReducerState& s_;
};

}  // namespace

void add_device_copies(ReducerState* s) {
  if (!s->devices) return;
  CopyIn* const copy = s->copy_ins.make<DeviceCopy>(*s);
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    if (s->buckets->place(i).on_device) s->copy_ins.set_all(i, copy);
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
