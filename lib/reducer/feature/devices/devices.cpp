#include "reducer/feature/devices/devices.h"

namespace weft {
namespace {

void add_device_works(ReducerState* s) {
  add_fetch_work(s);
  add_device_return_work(s);
}

}  // namespace

const StepFeature kDevices{.copies = add_device_copies, .works = add_device_works};

}  // namespace weft
