#include "reducer/calls/absent.h"

#include "base/text.h"
#include "reducer/bucket/dense_copy.h"
#include "reducer/calls/ready.h"
#include "reducer/feature/graph/captured.h"
#include "reducer/feature/uses/count_uses.h"

namespace weft {
namespace {

Status absent_refused(const ReducerData& r, uint64_t param, StepWord step) {
  WEFT_TRY(check_param(r.state->manifest, param));
  const std::string name = r.state->manifest.named(param);
  if (is_capturing(*r.state))
    return Status::error(Code::kUnsupported,
                         cat(name,
                             " cannot be absent from a captured step (WEFT_BEGIN_CAPTURE): every parameter "
                             "needs a gradient there"));
  if (!step.open())
    return Status::error(Code::kState,
                         cat(name, " cannot be absent: no step is open. Call weft_reducer_begin first"));
  if (r.state->comm->failed() && !r.state->has(WEFT_REDUCER_RETAIN)) return r.state->comm->failure();
  if (!step.local() && !r.state->has(WEFT_REDUCER_ABSENT) && !r.program.start.fixed) {
    return Status::error(
        Code::kState,
        cat(name,
            " cannot be absent: create the reducer with WEFT_REDUCER_ABSENT, or begin the step with "
            "WEFT_BEGIN_FIXED if the same parameters are absent on all ranks"));
  }
  const bool twice = r.state->presence->absent(param, step.stamp());
  if (!twice && was_used(*r.state, param, step.stamp()) &&
      !r.state->readiness->claimed(param, step.stamp())) {
    const std::string uses = uses_text(*r.state, param, step);
    return Status::error(Code::kState, cat(name, " cannot be absent: it is in use in this step already",
                                           uses.empty() ? "" : ", and became ready ", uses));
  }
  return Status::error(Code::kState,
                       cat(name, twice ? " is absent already in this step"
                                       : " is ready already in this step, so it cannot be absent"));
}

}  // namespace

Status declare_absent(ReducerData& r, const uint64_t* params, uint64_t count) {
  if (params == nullptr && count > 0)
    return note(r,
                Status::error(Code::kArg, cat("weft_reducer_absent: params is NULL, but count is ", count)));
  ReducerState& s = *r.state;
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t param = params[i];
    const StepWord step = s.readiness->step();
    const bool possible = has_bucket(s, param) && step.open() &&
                          (step.local() || s.has(WEFT_REDUCER_ABSENT) || r.program.start.fixed) &&
                          (!s.comm->failed() || s.has(WEFT_REDUCER_RETAIN));
    if (possible && !step.local() && !s.readiness->claimed(param, step.stamp()))
      WEFT_TRY(note(r, check_sum(r, param)));
    if (!possible || !s.readiness->leave_out(param, step.stamp())) {
      return note(r, absent_refused(r, param, step));
    }
    if (step.local()) continue;
    if (s.awaits_sum(param)) {
      WEFT_TRY(take_gradient(r, param, {result_place(r, param)}, step));
      continue;
    }
    if (exclude_param(r, param, step.stamp())) clear_place(place_in(s, param, r.program.start.fresh));
    count_gradient(r, param);
  }
  return {};
}

bool exclude_param(ReducerData& r, uint64_t param, uint32_t stamp) {
  ReducerState& s = *r.state;
  const bool device_view = !s.copy && s.buckets->place(param).on_device;
  if (s.copy) {
    s.gradients[param] = result_place(r, param);
    s.given->set(param, nullptr);
  }
  if (device_view) s.gradients[param] = s.views_on_devices->of(param);
  if (s.presence->accumulated(param)) {
    if (device_view) s.devices->take(param, stamp);
    return false;
  }
  s.presence->note_absent(param, stamp);
  return true;
}

Status check_sum(const ReducerData& r, uint64_t param) {
  const ReducerState& s = *r.state;
  const Buckets::Place& place = s.buckets->place(param);
  if (!s.awaits_sum(param) || (!place.sparse && (place.count == 0 || result_place(r, param) != nullptr)))
    return {};
  return Status::error(
      Code::kState,
      cat(s.manifest.named(param),
          " was ready in a local step, and would lose its gradient by being absent from the synchronised "
          "step: hand its sum over with ",
          place.sparse ? "weft_reducer_ready_sparse"
                       : "weft_reducer_ready, or set weft_param.gradient to where it lies",
          " (weft_reducer_options.accumulation is WEFT_ACCUMULATION_PROGRAM)"));
}

std::byte* result_place(const ReducerData& r, uint64_t param) {
  void* const given = r.program.destinations != nullptr ? r.program.destinations[param] : nullptr;
  return given != nullptr ? static_cast<std::byte*>(given) : r.state->manifest.gradient(param);
}

}  // namespace weft
