// Parameters that become ready several times in a step, as weft_param.uses declares or the first step shows.
#include "reducer/feature/uses/uses.h"

#include "base/arguments.h"
#include "base/text.h"
#include "core/context.h"
#include "reducer/reducer.h"

namespace weft {

Status Reducer::too_often(uint64_t param, StepWord step) const {
  const std::string name = cat("parameter ", param, " ('", state_->manifest.params[param].name, "')");
  const std::string uses = uses_text(param, step, 1);
  return Status::error(Code::kState,
                       cat(name, " became ready too often: ",
                           uses.empty() ? "it may become ready once in a step (weft_param.uses)" : uses));
}

// Returns "2 times, expected 3 (weft_param.uses)": the actual and the expected number of uses. Empty if a
// parameter is used once. more: uses that were rejected.
std::string Reducer::uses_text(uint64_t param, StepWord step, uint32_t more) const {
  const Uses* const uses = state_->uses.get();
  if (uses == nullptr || (!uses->learns() && uses->needed(param) == 1)) return {};
  const uint32_t count = state_->readiness->uses(param, step.stamp()) + more;
  return cat(count, count == 1 ? " time" : " times", ", expected ", uses->needed(param),
             uses->learns() ? " as in the first step (WEFT_REDUCER_STATIC)" : " (weft_param.uses)");
}

// True if the parameter was used in this step, whether or not for the last time. Always false if uses are not
// counted.
bool Reducer::used(uint64_t param, uint32_t stamp) const {
  return state_->uses && state_->readiness->uses(param, stamp) > 0;
}

// Takes a use while uses are learned: each may be the last, and nothing is communicated.
Status Reducer::take_use(uint64_t param, const Given& gradient, StepWord step) {
  ReducerState& s = *state_;
  s.uses->set_copied(param);
  if (!s.readiness->claimed(param, step.stamp())) remember(param, gradient);
  if (s.readiness->use(param, step.stamp(), UINT32_MAX) == Use::kRefused)
    return note(ready_refused(param, step));
  return {};
}

// Keeps a use that may be the last: its gradient's address or, in view mode, a copy of a gradient outside its
// view. Uses::mutex is held.
void Reducer::remember(uint64_t param, const Given& gradient) {
  ReducerState& s = *state_;
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

// Ends the step in which uses are learned: every gradient that became ready is complete now.
Status Reducer::take_learned(StepWord step) {
  ReducerState& s = *state_;
  std::vector<uint32_t> unused;
  for (uint32_t i = 0; i < s.manifest.params.size(); i++) {
    const bool open = has_bucket(i) && !s.readiness->claimed(i, step.stamp());  // not absent
    if (open && s.readiness->uses(i, step.stamp()) == 0) unused.push_back(i);
  }
  if (!unused.empty() && !step.local() && !s.mapped && !start_.fixed) return never_ready(unused);
  std::unique_lock lock(s.uses->mutex(), std::defer_lock);
  if (!s.comm->context().engine().wait([&] { return lock.try_lock(); }, s.comm->op_deadline(timeout_ms_)))
    return note(still_copied(s.uses->copied(), "the first step (WEFT_REDUCER_STATIC)"));
  for (uint32_t i = 0; i < s.manifest.params.size(); i++) {
    if (!has_bucket(i) || s.readiness->claimed(i, step.stamp())) continue;
    if (s.readiness->uses(i, step.stamp()) > 0) {
      if (!s.readiness->claim(i, step.stamp())) return note(ready_refused(i, step));
      const bool kept = s.copy || s.buckets->place(i).on_device;
      WEFT_TRY(take(i, {kept ? s.gradients[i] : nullptr, s.copy ? s.given->of(i) : nullptr}, step));
    } else if (!step.local()) {
      const uint64_t param = i;
      WEFT_TRY(absent(&param, 1));
    }
  }
  s.uses->learn(*s.readiness, step.stamp());
  return {};
}

// Marks the parameters that the first step did not use as absent; they are absent from every later step.
Status Reducer::leave_out_unused() {
  const ReducerState& s = *state_;
  if (!s.uses || !s.uses->learns() || s.uses->learning() || (!s.mapped && !start_.fixed)) return {};
  for (uint64_t i = 0; i < s.manifest.params.size(); i++) {
    if (has_bucket(i) && s.uses->needed(i) == 0) WEFT_TRY(absent(&i, 1));
  }
  return {};
}

Status Reducer::wait_param(uint64_t param, int64_t timeout_ms) {
  WEFT_TRY(note(check_timeout("timeout_ms", timeout_ms, true)));
  WEFT_TRY(note(known(*parts().state, param)));
  start_owed_gather();
  // Read before parts(): parts that are installed later know this step, too.
  const uint32_t stamp = synchronised_.load();
  const bool gathering = gathering_.load();
  const Parts at = parts();
  const ReducerState& s = *at.state;
  const std::shared_ptr<Step>& step = at.step;
  WEFT_TRY(note(known(s, param)));
  if (gathering) return wait_value(at, param, timeout_ms);
  if (stamp == 0) {
    return note(Status::error(Code::kState, cat("parameter ", param, " ('", s.manifest.params[param].name,
                                                "') has no result: no synchronised step has begun since the "
                                                "reducer was created or rebound")));
  }
  const uint32_t bucket = s.buckets->place(param).bucket;
  const auto over = [&] { return step->done(bucket, stamp) || step->finished(stamp); };
  if (!over()) step->let_end_for(bucket);
  Context& context = s.comm->context();
  if (!context.engine().wait(over,
                             Deadline::after(context.clock(), timeout_ms, WEFT_DEFAULT_OP_TIMEOUT_MS))) {
    return Status::error(Code::kNotDone,
                         cat("parameter ", param, " ('", s.manifest.params[param].name,
                             "') has no result yet: wait longer, or test again later (WEFT_ERR_NOT_DONE)"));
  }
  if (step->done(bucket, stamp)) return {};
  if (s.comm->failed()) return note(s.comm->failure());
  return note(Status::error(Code::kState, cat("parameter ", param, " ('", s.manifest.params[param].name,
                                              "') has no result: the last synchronised step ended without "
                                              "reducing its bucket")));
}

}  // namespace weft
