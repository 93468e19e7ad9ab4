#include "comm/capability.h"

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

Status check_user(const Capability& wanted) {
  const bool has =
      wanted.coll == Coll::kAllReduce || wanted.coll == Coll::kReduce || wanted.coll == Coll::kReduceScatter;
  if (has && wanted.device_kind == 0) return {};
  return Status::error(
      Code::kUnsupported,
      cat(name(wanted.coll), has ? " of device memory" : "",
          " does not support a reduction of the program (WEFT_OP_USER): allowed are all_reduce, "
          "reduce and reduce_scatter of host memory"));
}

}  // namespace

Status check_capability(const Capability& wanted) {
  // The inputs of a sparse all-reduce are in host memory.
  if (wanted.device_kind != 0 && wanted.coll == Coll::kSparseAllReduce) {
    return Status::error(Code::kUnsupported,
                         cat(name(wanted.coll), " does not support device memory: pass host memory"));
  }
  if (!is_reduction(wanted.coll)) return {};
  WEFT_TRY(check_reduction(wanted.op, wanted.dtype));
  if (wanted.coll == Coll::kSparseAllReduce && !computes(wanted.dtype)) {
    return Status::error(Code::kUnsupported,
                         cat(name(wanted.coll), " does not support dtype ", name(wanted.dtype),
                             ": allowed are integers and floats of 16 bits or more"));
  }
  if (wanted.op == ReduceOp::kUser) return check_user(wanted);
  for (const Row& row : kRows) {
    if (row.coll != wanted.coll || row.has(wanted.op)) continue;
    return Status::error(Code::kUnsupported, cat(name(wanted.coll), " does not support op ", name(wanted.op),
                                                 ": allowed are ", row.which));
  }
  return {};
}

}  // namespace weft
