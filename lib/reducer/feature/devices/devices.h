// Gradients on devices: they are fetched into their bucket once the program's streams have produced them, and
// results go back to them. Nothing waits for a device.
#pragma once

#include "reducer/features.h"

namespace weft {

extern const StepFeature kDevices;

// Parts of the feature.
void add_device_copies(ReducerState* state);
void add_fetch_work(ReducerState* state);
void add_device_return_work(ReducerState* state);

}  // namespace weft
