// Calls of weft_reducer_* whose work is still to come.
#include "capi/handles.h"

using namespace weft;
using namespace weft::capi;

namespace {

weft_status later(const char* call) {
  return plain([&] { return Status::error(Code::kUnsupported, cat(call, " is not in this version")); });
}

}  // namespace

weft_status weft_reducer_ready_sparse(weft_reducer*, uint64_t, const weft_sparse*, const weft_stream*) {
  return later(__func__);
}
weft_status weft_reducer_sparse_result(weft_reducer*, uint64_t, weft_sparse*) {
  return later(__func__);
}
