// What collectives exist for which element types, operations and memory: one table, by which calls are
// refused and which weft_capability shows. Threads: any thread; constant.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace weft {

struct Capability {
  Coll coll = Coll::kBarrier;
  Dtype dtype = Dtype::kU8;
  ReduceOp op = ReduceOp::kNone;  // of collectives that reduce
  int32_t device_kind = 0;        // WEFT_DEVICE_*
};

// Ok, or kUnsupported naming what does not exist. Every backend executes what exists, itself or as several
// collectives.
Status check_capability(const Capability& wanted);

}  // namespace weft
