// The supported combinations of collective, element type, operation and memory kind: one table, used to
// refuse calls and by weft_capability. Threads: any thread; constant.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace weft {

struct Capability {
  Coll coll = Coll::kBarrier;
  Dtype dtype = Dtype::kU8;
  ReduceOp op = ReduceOp::kNone;  // for collectives that reduce
  int32_t device_kind = 0;        // WEFT_DEVICE_*
};

// Returns ok, or kUnsupported naming what is not supported. Every backend executes what is supported, itself
// or as several collectives.
Status check_capability(const Capability& wanted);

}  // namespace weft
