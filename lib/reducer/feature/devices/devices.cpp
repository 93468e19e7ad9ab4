#include "reducer/feature/devices/devices.h"

#include "reducer/data.h"
#include "reducer/feature/devices/device_ready.h"

namespace weft {
namespace {

void add_device_works(ReducerState* s) {
  add_fetch_work(s);
  add_device_return_work(s);
}

Status notice_use(ReducerData& r) {
  notice_devices(*r.state);
  return {};
}

void record_devices(ReducerData& r, bool full) {
  ReducerState& s = *r.state;
  if (full && s.devices) fail_device(s, s.devices->record_all(r.program.stamp), 0);
}

void forget_arrivals(const ReducerState& s, uint32_t stamp) {
  if (s.devices) s.devices->forget(stamp);
}

}  // namespace

const StepFeature kDevices{.copies = add_device_copies,
                           .works = add_device_works,
                           .forget = forget_arrivals,
                           .before_step = notice_use,
                           .open = record_devices};

}  // namespace weft
