#include "reducer/calls/finish.h"

#include <cmath>
#include <utility>

#include "base/arguments.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/absent.h"
#include "reducer/calls/end_step.h"
#include "reducer/calls/fail_step.h"
#include "reducer/feature/devices/stream_waits.h"
#include "reducer/feature/graph/captured.h"
#include "reducer/feature/sharded/gather_calls.h"
#include "reducer/feature/uses/count_uses.h"
#include "reducer/host_stream.h"

namespace weft {
namespace {

Status finish_open(ReducerData& r, const weft_finish_options& options, StepWord step, uint64_t entered_ns) {
  ReducerState& s = *r.state;
  WEFT_TRY(note(r, check_finish(s, options)));
  if (r.program.fail_next && !step.local()) {
    publish_finish(s, FinishRecord{.flags = FinishRecord::kJoined});
    const std::string text = *r.program.fail_next;  // a copy, because fail_step resets r.program.fail_next
    return fail_step(r, text);
  }
  const bool shows_uses = step.local() || !r.program.start.zeros;  // a step without data shows no uses
  // After a failure missing gradients stay missing, and the step ends all the same.
  const bool wanted = !s.comm->failed() || s.has(WEFT_REDUCER_RETAIN) || step.local();
  if (s.uses && s.uses->learning() && shows_uses && wanted) {
    if (Status taken = take_learned(r, step); !taken.ok() && !s.comm->failed()) return taken;
  }
  if (step.local()) return finish_local(r);
  if ((options.flags & WEFT_FINISH_REST_ABSENT) != 0 && wanted) {
    for (uint64_t param = 0; param < s.manifest.params.size(); param++) {
      // A parameter with too few uses is missing, not absent.
      const bool came = s.readiness->claimed(param, step.stamp()) || was_used(s, param, step.stamp());
      if (!has_bucket(s, param) || came) continue;
      if (Status left = declare_absent(r, &param, 1); !left.ok() && !s.comm->failed()) return left;
    }
  }
  if (!s.comm->failed()) {
    // A claimed parameter that has not arrived is no error: another thread is copying it right now.
    if (!s.readiness->full()) {
      if (const auto missing = s.readiness->missing(); !missing.empty()) return never_ready(r, missing);
    }
  }
  publish_finish(s, options);
  r.step->let_end();
  if (!s.comm->failed() && leave_to_streams(r, options, entered_ns)) return {};
  return wait_for_step(r, entered_ns, (options.flags & WEFT_FINISH_COMMIT) != 0 || s.has(WEFT_REDUCER_RETAIN),
                       r.timeout_ms);
}

}  // namespace

Status check_finish(const ReducerState& s, const weft_finish_options& options) {
  constexpr uint64_t kOfNorms = WEFT_FINISH_SKIP | WEFT_FINISH_SKIP_NONFINITE;
  constexpr NamedValue kFlags[] = {WEFT_NAMED(WEFT_FINISH_COMMIT), WEFT_NAMED(WEFT_FINISH_REST_ABSENT),
                                   WEFT_NAMED(WEFT_FINISH_SKIP), WEFT_NAMED(WEFT_FINISH_SKIP_NONFINITE)};
  if (options.flags != 0) WEFT_TRY(check_flags("weft_finish_options.flags", options.flags, kFlags));
  if (!std::isfinite(options.clip_norm) || options.clip_norm < 0) {
    return Status::error(Code::kArg, cat("weft_finish_options.clip_norm is ", options.clip_norm,
                                         ": allowed are finite numbers above 0, and 0 for no clipping"));
  }
  const bool decision = (options.flags & kOfNorms) != 0 || options.clip_norm != 0;
  if (decision && !s.norms) {
    return Status::error(
        Code::kState,
        "weft_finish_options.clip_norm, WEFT_FINISH_SKIP and WEFT_FINISH_SKIP_NONFINITE need a "
        "reducer created with WEFT_REDUCER_NORMS");
  }
  if (decision && s.readiness->step().open() && s.readiness->step().local()) {
    return Status::error(Code::kState,
                         "a local step has no results: clip or skip when a synchronised step finishes");
  }
  if (!on_host(options.stream) && !s.devices) {
    return no_streams().with_prefix(
        "weft_finish_options.stream is set, but the reducer has no gradients on devices: ");
  }
  return {};
}

Status finish_step(ReducerData& r, const weft_finish_options& options) {
  const uint64_t entered_ns = r.state->comm->context().clock().now_ns();
  if (r.program.finishing) return settle_finish(r);
  const StepWord step = r.state->readiness->step();
  if (!step.open()) {
    if (std::exchange(r.program.finish_again, false)) return {};
    return note(r, Status::error(Code::kState, "finish without begin: no step is open"));
  }
  Status status = finish_open(r, options, step, entered_ns);
  r.program.finish_again = status.ok() && !r.program.finishing && !on_host(options.stream);
  return status;
}

void publish_finish(const ReducerState& s, const weft_finish_options& options) {
  FinishRecord record;
  record.clip_norm = options.clip_norm;
  if ((options.flags & WEFT_FINISH_SKIP) != 0) record.flags |= FinishRecord::kSkip;
  if ((options.flags & WEFT_FINISH_SKIP_NONFINITE) != 0) record.flags |= FinishRecord::kSkipNonfinite;
  publish_finish(s, record);
}

void publish_finish(const ReducerState& s, const FinishRecord& request) {
  if (!s.norms) return;
  s.norms->publish(request);
  s.comm->context().engine().notify();
}

Status finish_local(ReducerData& r) {
  const ReducerState& s = *r.state;
  s.readiness->close();
  const Deadline deadline = s.comm->op_deadline(r.timeout_ms);
  for (uint64_t i = 0; i < s.manifest.params.size(); i++) {
    if (!s.readiness->copying(i)) continue;
    // Another thread is copying it right now.
    if (s.comm->context().engine().wait([&] { return !s.readiness->copying(i); }, deadline)) continue;
    s.readiness->reopen();
    return note(r, still_copied(s, i, "a local step"));
  }
  s.presence->note_local_step();
  r.statistics.locked([](Statistics::Values& v) { v.stats.local_steps++; });
  return s.comm->failed() ? note(r, s.comm->failure()) : Status();
}

Status never_ready(ReducerData& r, const std::vector<uint32_t>& missing) {
  const uint32_t first = missing.front();
  const std::string uses = uses_text(*r.state, first, r.state->readiness->step());
  return note(
      r,
      Status::error(
          Code::kState,
          cat(missing.size(), " of ", r.state->manifest.params.size(), " parameters never became ready in ",
              step_text(r), " on rank ", r.state->comm->rank(), ": ",
              r.state->manifest.names(missing, missing.size()),
              uses.empty() ? ""
                           : cat(" ('", r.state->manifest.params[first].name, "' became ready ", uses, ")"),
              ". The step is still open: make them ready, or declare them absent (WEFT_REDUCER_ABSENT), and "
              "finish again")));
}

Status still_copied(const ReducerState& s, uint64_t param, const char* step) {
  const int rank = s.comm->rank();
  return Status::error(Code::kTimeout,
                       cat("rank ", rank, ": ", s.manifest.named(param),
                           " is still being copied by a call of weft_reducer_ready in ", step,
                           ". The step is still open: finish it when that has returned"),
                       Evidence::kDeadline)
      .with_ranks({rank});
}

Status settle_finish(ReducerData& r) {
  if (!r.program.finishing) return {};
  r.program.finishing = false;
  return wait_for_step(r, r.program.entered_ns, false, r.program.finish_deadline);
}

Status check_between_steps(ReducerData& r, const char* what) {
  WEFT_TRY(settle_finish(r));
  if (r.state->comm->failed()) return r.state->comm->failure();
  WEFT_TRY(outside_capture(*r.state, what));
  WEFT_TRY(outside_step(r, what));
  return settle_gather(r);
}

}  // namespace weft
