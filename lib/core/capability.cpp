#include "core/capability.h"

#include "base/text.h"

namespace weft {
namespace {

// Operations that a collective does not support, with the text of the error.
struct Row {
  Coll coll;
  bool (*has)(ReduceOp op);
  const char* which;
};

constexpr Row kRows[] = {
    {Coll::kSparseAllReduce, [](ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg; },
     "sum and avg"},
};

}  // namespace

Status check_capability(const Capability& wanted) {
  // The inputs of a sparse all-reduce are in host memory.
  if (wanted.device_kind != 0 && wanted.coll == Coll::kSparseAllReduce) {
    return Status::error(Code::kUnsupported,
                         cat(name(wanted.coll), " does not support device memory: pass host memory"));
  }
  if (!is_reduction(wanted.coll)) return {};
  WEFT_TRY(check_reduction(wanted.op, wanted.dtype));
  for (const Row& row : kRows) {
    if (row.coll != wanted.coll || row.has(wanted.op)) continue;
    return Status::error(Code::kUnsupported, cat(name(wanted.coll), " does not support op ", name(wanted.op),
                                                 ": allowed are ", row.which));
  }
  return {};
}

}  // namespace weft
