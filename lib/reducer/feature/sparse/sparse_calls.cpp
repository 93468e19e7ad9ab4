#include "reducer/feature/sparse/sparse_calls.h"

#include <mutex>

#include "base/text.h"
#include "comm/context.h"
#include "device/accelerator.h"
#include "reducer/calls/finish.h"
#include "reducer/calls/read.h"
#include "reducer/calls/ready.h"

namespace weft {
namespace {

// Rejects device memory. Called in a program that uses devices.
Status check_on_host(Accelerator& accelerator, const weft_sparse& entries) {
  for (const void* const start : {static_cast<const void*>(entries.indices), entries.values}) {
    PointerInfo info;
    if (start != nullptr) WEFT_TRY(accelerator.query_pointer(start, &info));
    if (info.place != MemoryPlace::kDevice) continue;
    return Status::error(Code::kArg, cat(start == entries.indices ? "its indices are" : "its values are",
                                         " in memory of CUDA device ", info.device,
                                         ", but sparse gradients must be in host memory in this version"));
  }
  return {};
}

}  // namespace
Status make_sparse_ready(ReducerData& r, uint64_t param, const weft_sparse& entries,
                         const weft_stream* stream) {
  ReducerState& s = *r.state;
  const StepWord step = s.readiness->step();
  if (param >= s.manifest.params.size() || !step.open() ||
      (s.comm->failed() && !s.has(WEFT_REDUCER_RETAIN))) {
    return note(r, ready_refused(s, param, step));
  }
  const auto named = [&](const Status& status) {
    if (status.ok()) return status;  // avoids building a text
    return note(r, status.with_prefix(cat(s.manifest.named(param), ": ")));
  };
  SparseGradient* const gradient = s.sparse ? s.sparse->of(param) : nullptr;
  if (gradient == nullptr) {
    WEFT_TRY(note(r, check_param(s.manifest, param)));
    return named(Status::error(Code::kArg, "its gradient is not sparse: use weft_reducer_ready"));
  }
  if (stream != nullptr && stream->kind != WEFT_DEVICE_HOST) {
    return named(
        Status::error(Code::kUnsupported, cat("weft_stream.kind is ", stream->kind,
                                              ", but sparse gradients must be in host memory in this "
                                              "version: pass no stream")));
  }
  if (s.beside_devices.load(std::memory_order_relaxed) && entries.count > 0)
    WEFT_TRY(named(check_on_host(*s.comm->context().accelerator(), entries)));
  WEFT_TRY(named(gradient->check(entries)));
  if (s.uses && s.uses->learning()) {
    const std::lock_guard lock(s.uses->mutex());
    if (s.uses->learning()) {  // each use may be the last
      s.uses->set_copied(param);
      if (s.readiness->use(param, step.stamp(), UINT32_MAX) == Use::kRefused)
        return note(r, ready_refused(s, param, step));
      return named(gradient->put(entries, false));
    }
  }
  const Use use = s.readiness->use(param, step.stamp(), s.uses ? s.uses->awaited(param) : 1);
  if (use == Use::kRefused) return note(r, ready_refused(s, param, step));
  if (use == Use::kEarlier) return {};
  return take_gradient(r, param, {.entries = &entries}, step);
}

Status read_sparse_result(ReducerData& r, uint64_t param, weft_sparse* result) {
  WEFT_TRY(settle_finish(r));
  const ReducerState& s = *r.state;
  *result = WEFT_SPARSE_INIT;
  WEFT_TRY(note(r, check_param(s.manifest, param)));
  const SparseGradient* const gradient = s.sparse ? s.sparse->of(param) : nullptr;
  if (gradient == nullptr) {
    return note(r, Status::error(Code::kArg, cat(s.manifest.named(param),
                                                 ": its gradient is not sparse: use weft_reducer_result")));
  }
  WEFT_TRY(note(r, check_result(r, param)));
  gradient->result(result);
  return {};
}

}  // namespace weft
