// Marks gradients on devices to be fetched into their bucket (feature/devices/fetch_work.h), and adds those
// of local steps.
#pragma once

namespace weft {

struct ReducerState;

void add_device_copies(ReducerState* state);

}  // namespace weft
