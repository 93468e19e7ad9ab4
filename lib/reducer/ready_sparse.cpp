// Sparse gradients: takes their entries from the program's ready calls, and returns results to the program.
// Threads: as Reducer's calls.
#include "base/text.h"
#include "core/accelerator.h"
#include "core/context.h"
#include "reducer/reducer.h"

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

Status Reducer::ready_sparse(uint64_t param, const weft_sparse& entries, const weft_stream* stream) {
  ReducerState& s = *state_;
  const StepWord step = s.readiness->step();
  if (param >= s.manifest.params.size() || !step.open() || (s.comm->failed() && !s.retain)) {
    return note(ready_refused(param, step));
  }
  const auto named = [&](const Status& status) {
    if (status.ok()) return status;  // avoids building a text
    return note(status.with_prefix(cat("parameter ", param, " ('", s.manifest.params[param].name, "'): ")));
  };
  SparseGradient* const gradient = s.sparse ? s.sparse->of(param) : nullptr;
  if (gradient == nullptr) {
    WEFT_TRY(note(known(param)));
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
        return note(ready_refused(param, step));
      return named(gradient->put(entries, false));
    }
  }
  const Use use = s.readiness->use(param, step.stamp(), s.uses ? s.uses->awaited(param) : 1);
  if (use == Use::kRefused) return note(ready_refused(param, step));
  if (use == Use::kEarlier) return {};
  return take(param, {.entries = &entries}, step);
}

Status Reducer::sparse_result(uint64_t param, weft_sparse* result) {
  WEFT_TRY(settle_finish());
  const ReducerState& s = *state_;
  *result = WEFT_SPARSE_INIT;
  WEFT_TRY(note(known(param)));
  const SparseGradient* const gradient = s.sparse ? s.sparse->of(param) : nullptr;
  if (gradient == nullptr) {
    return note(Status::error(Code::kArg, cat("parameter ", param, " ('", s.manifest.params[param].name,
                                              "'): its gradient is not sparse: use weft_reducer_result")));
  }
  WEFT_TRY(note(check_result(param)));
  gradient->result(result);
  return {};
}

// Returns the bytes that the last step reduced.
uint64_t Reducer::reduced_bytes(uint32_t bucket) const {
  const PlannedBucket& planned = state_->plan.buckets[bucket];
  return planned.sparse ? state_->sparse->of(planned.params.front())->result_bytes() : planned.bytes();
}

}  // namespace weft
