// DeviceOps::select on the host, the same for every instruction set. Any thread.
#pragma once

#include "core/device_kernels.h"

namespace weft {

void select_largest(const SelectArgs& args);

}  // namespace weft
