#include "reducer/calls/begin.h"

#include <algorithm>
#include <cmath>

#include "base/arguments.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/absent.h"
#include "reducer/calls/end_step.h"
#include "reducer/calls/finish.h"
#include "reducer/calls/ready.h"
#include "reducer/calls/replan.h"
#include "reducer/feature/devices/device_ready.h"
#include "reducer/feature/graph/captured.h"
#include "reducer/feature/uses/count_uses.h"
#include "reducer/features.h"
#include "reducer/step/stamps.h"

namespace weft {
namespace {

// Refuses a local step whose meaning the program has not chosen.
Status check_accumulation(const ReducerState& s) {
  if (s.options.accumulation != WEFT_ACCUMULATION_UNSET) return {};
  return Status::error(
      Code::kState,
      cat("WEFT_BEGIN_LOCAL needs a choice in weft_reducer_options.accumulation: "
          "WEFT_ACCUMULATION_PROGRAM if the program adds up micro-batches in its gradients, as PyTorch does "
          "under no_sync",
          s.copy ? ", or WEFT_ACCUMULATION_REDUCER if each ready hands over the gradient of its "
                   "micro-batch alone"
                 : ", so that ready hands over their sum also for sparse gradients and for gradients "
                   "outside their views"));
}

Status check_begin(const ReducerState& s, const weft_begin_options& options) {
  constexpr NamedValue kFlags[] = {WEFT_NAMED(WEFT_BEGIN_LOCAL), WEFT_NAMED(WEFT_BEGIN_NO_DATA),
                                   WEFT_NAMED(WEFT_BEGIN_FIXED), WEFT_NAMED(WEFT_BEGIN_RECORD),
                                   WEFT_NAMED(WEFT_BEGIN_CAPTURE)};
  if (options.flags != 0) WEFT_TRY(check_flags("weft_begin_options.flags", options.flags, kFlags));
  if (options.reserved != 0)
    return Status::error(Code::kArg,
                         cat("weft_begin_options.reserved is ", options.reserved, ", but must be 0"));
  if ((options.flags & WEFT_BEGIN_LOCAL) != 0) WEFT_TRY(check_accumulation(s));
  if ((options.flags & WEFT_BEGIN_NO_DATA) != 0) {
    if (!s.has(WEFT_REDUCER_UNEVEN)) {
      return Status::error(Code::kState,
                           "WEFT_BEGIN_NO_DATA needs a reducer created with WEFT_REDUCER_UNEVEN");
    }
    if ((options.flags & (WEFT_BEGIN_LOCAL | WEFT_BEGIN_FIXED)) != 0) {
      return Status::error(Code::kArg, "WEFT_BEGIN_NO_DATA excludes WEFT_BEGIN_LOCAL and WEFT_BEGIN_FIXED");
    }
  }
  if (options.weight == 0.0 || options.weight == 1.0) return {};
  if (!(std::isfinite(options.weight) && options.weight > 0)) {
    return Status::error(Code::kArg, cat("weft_begin_options.weight is ", options.weight,
                                         ": allowed are finite numbers above 0, and 0 for the default, 1"));
  }
  if (s.options.divide_by != WEFT_DIVIDE_WEIGHTS) {
    return Status::error(Code::kArg,
                         cat("weft_begin_options.weight is ", options.weight,
                             ", which needs a reducer created with divide_by WEFT_DIVIDE_WEIGHTS"));
  }
  return {};
}

// True if the step that begins now is fresh (StepStart::fresh). A step whose ranks may be without data, or
// in which a feature works on contributions, is not: its places are cleared and read in the storage dtype.
bool begins_fresh(const ReducerState& s) {
  const bool adds = s.options.accumulation == WEFT_ACCUMULATION_REDUCER && s.presence->local_steps() > 0;
  return !s.has(WEFT_REDUCER_UNEVEN) && !s.touches_contributions && !adds;
}

Status check_destinations(const ReducerState& s, void* const* gradients) {
  if (gradients == nullptr) return {};
  if (!s.copy)
    return Status::error(Code::kArg,
                         "weft_begin_options.gradients is set, but the reducer is in view mode, in which "
                         "results are in the views: pass NULL");
  for (uint64_t i = 0; i < s.manifest.params.size(); i++) {
    if (!has_bucket(s, i)) continue;
    if (reinterpret_cast<uintptr_t>(gradients[i]) % s.buckets->place(i).gradient_bytes == 0) {
      if (gradients[i] != nullptr)
        WEFT_TRY(check_gradient_memory(s, i, gradients[i])
                     .with_prefix(
                         cat("weft_begin_options.gradients[", i, "] ('", s.manifest.params[i].name, "'): ")));
      continue;
    }
    return Status::error(
        Code::kArg,
        cat("weft_begin_options.gradients[", i, "] ('", s.manifest.params[i].name, "') is ", gradients[i],
            ", which is not aligned to its ", int{s.buckets->place(i).gradient_bytes}, "-byte elements"));
  }
  return {};
}

}  // namespace

uint32_t next_stamp(ReducerData& r) {
  const uint32_t stamp = r.program.stamp = stamp_after(r.program.stamp);
  if (begins_half(stamp)) {
    r.state->presence->forget(stamp);
    forget_marks(*r.state, stamp);
  }
  return stamp;
}

void open_step(ReducerData& r, const StepStart& start, bool full) {
  r.program.retained_step = kNoStep;
  r.program.results = false;
  r.program.synchronised = r.program.stamp;
  r.program.start = start;
  r.program.start.number = r.program.start.record.step = r.statistics.steps();
  r.program.start.begin_ns = r.state->comm->context().clock().now_ns();
  open_features(r, full);
  r.step->prepare(r.program.start);
  if (start.noting)
    r.state->order->begin();  // a step without data records nothing, and what was recorded is out of date
  r.state->readiness->open(r.program.stamp, false, full, start.noting && !full);
  if (full) r.state->comm->context().engine().notify();
}

Status begin_step(ReducerData& r, const weft_begin_options* options) {
  const weft_begin_options given = options != nullptr ? *options : weft_begin_options WEFT_BEGIN_OPTIONS_INIT;
  WEFT_TRY(settle_finish(r));
  if (r.state->comm->failed()) return note(r, r.state->comm->failure());
  WEFT_TRY(note(r, outside_step(r, "begin")));
  WEFT_TRY(note(r, outside_capture(*r.state, "begin")));
  if ((given.flags & WEFT_BEGIN_CAPTURE) != 0 && check_begin(*r.state, given).ok())
    return note(r, begin_captured(r, given));
  WEFT_TRY(note(r, check_begin(*r.state, given)));
  WEFT_TRY(note(r, check_destinations(*r.state, given.gradients)));
  WEFT_TRY(note(r, end_between_steps(r)));
  r.program.reduced = false;
  r.program.finish_again = false;
  r.program.destinations = given.gradients;
  if ((given.flags & WEFT_BEGIN_LOCAL) != 0) {
    r.state->readiness->open(next_stamp(r), true);
    return {};
  }
  WEFT_TRY(note(r, replan_automatically(r)));
  StepStart start;
  start.record.micro_batches = std::max<uint32_t>(given.micro_batches, 1);
  start.record.weight = given.weight == 0.0 ? 1.0 : given.weight;
  start.local_steps = r.state->presence->local_steps();
  start.fresh = begins_fresh(*r.state);
  r.state->fresh_divisor = even_handshake(r.state->comm->size(), start.record.micro_batches).divisor;
  start.fixed = (given.flags & WEFT_BEGIN_FIXED) != 0;
  if (start.fixed) start.record.flags |= HandshakeRecord::kFixed;
  // While uses are learned, gradients are taken at the end of the step, in an order without meaning.
  const bool learning = r.state->uses && r.state->uses->learning();
  start.noting = !learning && ((given.flags & WEFT_BEGIN_RECORD) != 0 || !r.state->order->noted());
  if ((given.flags & WEFT_BEGIN_NO_DATA) != 0) {
    WEFT_TRY(note(r, begin_without_data(r, start, false)));
    return await_open_features(r, r.timeout_ms);
  }
  next_stamp(r);
  open_step(r, start, false);
  WEFT_TRY(await_open_features(r, r.timeout_ms));
  Status left = leave_out_unused(r);
  if (left.ok() || !r.state->comm->failed()) return left;
  return wait_for_step(r, r.state->comm->context().clock().now_ns(), false,
                       r.timeout_ms);  // no step stays open
}

Status begin_without_data(ReducerData& r, StepStart start, bool joined) {
  const uint64_t params = r.state->manifest.params.size();
  for (uint64_t i = 0; i < params; i++) {
    if (has_bucket(*r.state, i)) WEFT_TRY(check_sum(r, i));
  }
  bool accumulated = false;
  next_stamp(r);
  for (uint64_t i = 0; i < params; i++) {
    if (!has_bucket(*r.state, i)) continue;
    accumulated |= !exclude_param(r, i, r.program.stamp);
    if (r.state->awaits_sum(i))
      copy_gradient(r, i, {result_place(r, i)}, StepWord::make(r.program.stamp, true, false));
  }
  start.zeros = true;
  start.record.flags = accumulated ? HandshakeRecord::kData : 0;
  start.record.flags |= HandshakeRecord::kZeros;
  if (joined) start.record.flags |= HandshakeRecord::kJoined;
  open_step(r, start, true);
  return {};
}

}  // namespace weft
