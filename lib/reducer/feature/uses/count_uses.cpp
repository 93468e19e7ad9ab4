#include "reducer/feature/uses/count_uses.h"

#include <mutex>

#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/absent.h"
#include "reducer/calls/finish.h"
#include "reducer/calls/ready.h"
#include "reducer/feature/uses/uses.h"

namespace weft {
namespace {

// Keeps a use that may be the last: its gradient's address or, in view mode, a copy of a gradient outside its
// view. Uses::mutex is held.
void keep_use(ReducerState& s, uint64_t param, const Given& gradient) {
  const Buckets::Place& place = s.buckets->place(param);
  if (s.copy || place.on_device) {
    s.gradients[param] = static_cast<std::byte*>(gradient.data);
    if (s.copy) s.given->set(param, gradient.layout);
  } else if (gradient.data != nullptr && gradient.data != place.memory) {
    const Layout& layout = gradient.layout != nullptr ? *gradient.layout : *place.layout;
    layout.flatten(s.comm->context().host(), static_cast<const std::byte*>(gradient.data), place.memory,
                   place.dtype, false, 1, s.buckets->streaming());
  }
}

}  // namespace

Status too_often(const ReducerState& s, uint64_t param, StepWord step) {
  const std::string name = s.manifest.named(param);
  const std::string uses = uses_text(s, param, step, 1);
  return Status::error(Code::kState,
                       cat(name, " became ready too often: ",
                           uses.empty() ? "it may become ready once in a step (weft_param.uses)" : uses));
}

std::string uses_text(const ReducerState& s, uint64_t param, StepWord step, uint32_t more) {
  const Uses* const uses = s.uses.get();
  if (uses == nullptr || (!uses->learns() && uses->needed(param) == 1)) return {};
  const uint32_t count = s.readiness->uses(param, step.stamp()) + more;
  return cat(count, count == 1 ? " time" : " times", ", expected ", uses->needed(param),
             uses->learns() ? " as in the first step (WEFT_REDUCER_STATIC)" : " (weft_param.uses)");
}

bool was_used(const ReducerState& s, uint64_t param, uint32_t stamp) {
  return s.uses && s.readiness->uses(param, stamp) > 0;
}

Status take_use(ReducerData& r, uint64_t param, const Given& gradient, StepWord step) {
  ReducerState& s = *r.state;
  s.uses->set_copied(param);
  if (!s.readiness->claimed(param, step.stamp())) keep_use(s, param, gradient);
  if (s.readiness->use(param, step.stamp(), UINT32_MAX) == Use::kRefused)
    return note(r, ready_refused(s, param, step));
  return {};
}

Status take_learned(ReducerData& r, StepWord step) {
  ReducerState& s = *r.state;
  std::vector<uint32_t> unused;
  for (uint32_t i = 0; i < s.manifest.params.size(); i++) {
    const bool open = has_bucket(s, i) && !s.readiness->claimed(i, step.stamp());  // not absent
    if (open && s.readiness->uses(i, step.stamp()) == 0) unused.push_back(i);
  }
  if (!unused.empty() && !step.local() && !s.has(WEFT_REDUCER_ABSENT) && !r.program.start.fixed)
    return never_ready(r, unused);
  std::unique_lock lock(s.uses->mutex(), std::defer_lock);
  if (!s.comm->context().engine().wait([&] { return lock.try_lock(); }, s.comm->op_deadline(r.timeout_ms)))
    return note(r, still_copied(s, s.uses->copied(), "the first step (WEFT_REDUCER_STATIC)"));
  for (uint32_t i = 0; i < s.manifest.params.size(); i++) {
    if (!has_bucket(s, i) || s.readiness->claimed(i, step.stamp())) continue;
    if (s.readiness->uses(i, step.stamp()) > 0) {
      if (!s.readiness->claim(i, step.stamp())) return note(r, ready_refused(s, i, step));
      const bool kept = s.copy || s.buckets->place(i).on_device;
      WEFT_TRY(
          take_gradient(r, i, {kept ? s.gradients[i] : nullptr, s.copy ? s.given->of(i) : nullptr}, step));
    } else if (!step.local()) {
      const uint64_t param = i;
      WEFT_TRY(declare_absent(r, &param, 1));
    }
  }
  s.uses->learn(*s.readiness, step.stamp());
  return {};
}

Status leave_out_unused(ReducerData& r) {
  const ReducerState& s = *r.state;
  if (!s.uses || !s.uses->learns() || s.uses->learning() ||
      (!s.has(WEFT_REDUCER_ABSENT) && !r.program.start.fixed))
    return {};
  for (uint64_t i = 0; i < s.manifest.params.size(); i++) {
    if (has_bucket(s, i) && s.uses->needed(i) == 0) WEFT_TRY(declare_absent(r, &i, 1));
  }
  return {};
}

}  // namespace weft
