#include "reducer/calls/fail_step.h"

#include <algorithm>
#include <mutex>

#include "base/text.h"
#include "comm/context.h"
#include "reducer/bucket/dense_copy.h"
#include "reducer/calls/end_step.h"
#include "reducer/calls/finish.h"
#include "reducer/calls/ready.h"
#include "reducer/feature/graph/captured.h"

namespace weft {
namespace {

// Marks the accumulation as failed: the synchronised step that sums it up will fail, and the other ranks are
// notified then.
Status fail_local(ReducerData& r, std::string_view text) {
  WEFT_TRY(finish_local(r));
  if (!r.program.fail_next) r.program.fail_next.emplace(text);
  return {};
}

void fail_comm(ReducerData& r, std::string_view text) {
  const int rank = r.state->comm->rank();
  // Not kStepFailed, which says that the next step works.
  r.state->comm->fail(Status::error(Code::kAborted, cat("rank ", rank, ": ", StepFailures::cut(text),
                                                        " (it called weft_reducer_fail in ", step_text(r),
                                                        ", which other ranks may complete without it)"))
                          .with_ranks({rank})
                          .with_step(r.statistics.steps()));
}

// True if other ranks may skip a bucket with WEFT_BEGIN_FIXED, because all of its parameters are absent
// there. This rank cannot tell whether they do while none of a bucket's parameters is ready and some are
// missing.
bool may_be_left_out(const ReducerData& r) {
  const ReducerState& s = *r.state;
  const uint32_t stamp = s.readiness->step().stamp();
  if (!r.program.start.fixed || s.comm->size() == 1) return false;
  const auto missing = [&](uint32_t param) { return !s.readiness->claimed(param, stamp); };
  const auto unknown = [&](const PlannedBucket& bucket) {
    const std::vector<uint32_t>& params = bucket.params;
    return std::any_of(params.begin(), params.end(), missing) &&
           std::all_of(params.begin(), params.end(),
                       [&](uint32_t param) { return missing(param) || s.presence->absent(param, stamp); });
  };
  return std::any_of(s.plan.buckets.begin(), s.plan.buckets.end(), unknown);
}

void publish_failure(ReducerData& r, std::string_view text, Deadline deadline) {
  const ReducerState& s = *r.state;
  const Bytes message = StepFailures::encode(attempt_of(r), text);
  s.failures->on_lane_message(s.comm->rank(), message);
  const Status notified = s.comm->lane_messages().send(s.lane->key().id, message, deadline);
  if (notified.ok()) return;
  s.comm->fail(
      Interrupt::requested()
          ? s.comm->interrupted(step_text(r))
          : notified.with_prefix(cat("reporting the failure of ", step_text(r), " to the other ranks: "))
                .with_step(r.statistics.steps()));
}

// Contributes zeros for the parameters that are not ready; they receive no result.
void fill_missing(ReducerData& r, Deadline deadline) {
  ReducerState& s = *r.state;
  const uint32_t stamp = s.readiness->step().stamp();
  std::unique_lock<std::mutex> uses;
  if (s.uses && s.uses->learning()) {
    uses = std::unique_lock(s.uses->mutex(), std::defer_lock);
    if (!s.comm->context().engine().wait([&] { return uses.try_lock(); }, deadline)) {
      s.comm->fail(still_copied(s, s.uses->copied(), "the first step (WEFT_REDUCER_STATIC)"));
      return;
    }
  }
  for (uint32_t i = 0; i < s.manifest.params.size(); i++) {
    if (!has_bucket(s, i) || !s.readiness->claim(i, stamp)) continue;
    const Buckets::Place& place = s.buckets->place(i);
    if (!s.gradients.empty()) s.gradients[i] = nullptr;
    if (place.sparse) {
      s.sparse->of(i)->leave_empty();
    } else {
      clear_place(place_in(s, i, r.program.start.fresh));
    }
    count_gradient(r, i);
  }
}

}  // namespace

Status fail_open_step(ReducerData& r, std::string_view text) {
  WEFT_TRY(settle_finish(r));
  WEFT_TRY(note(r, outside_capture(*r.state, "fail")));
  const StepWord step = r.state->readiness->step();
  if (!step.open())
    return note(
        r, Status::error(Code::kState, "weft_reducer_fail: no step is open; call weft_reducer_begin first"));
  if (step.local()) return fail_local(r, text);
  publish_finish(*r.state, FinishRecord{.flags = FinishRecord::kJoined});
  const Status ended = fail_step(r, text);
  return ended.code() == Code::kStepFailed && !r.state->comm->failed() ? Status() : ended;
}

Status fail_step(ReducerData& r, std::string_view text) {
  const ReducerState& s = *r.state;
  Comm& comm = *s.comm;
  const uint64_t entered_ns = comm.context().clock().now_ns();
  const Deadline deadline = comm.op_deadline(r.timeout_ms);
  r.step->set_deadline(deadline);
  r.step->stop();
  if (!comm.failed() && may_be_left_out(r)) {
    fail_comm(r, text);
  } else if (!comm.failed()) {
    fill_missing(r, deadline);
    const auto over = [&] { return r.step->finished(r.program.stamp) || comm.failed(); };
    const auto stopped = [&] { return r.step->stopped() != Step::Stopped::kNot || over(); };
    if (!comm.context().engine().wait(stopped, deadline) && Interrupt::requested())
      comm.fail(comm.interrupted(step_text(r)));
    const bool reduces =
        !r.step->finished(r.program.stamp) || r.step->handshake().outcome == StepOutcome::kReduce;
    if (r.step->stopped() == Step::Stopped::kInTime || comm.size() == 1) {
      publish_failure(r, text, deadline);
    } else if (reduces && !comm.failed()) {
      fail_comm(r, text);
    }
  }
  const Status ended = wait_for_step(r, entered_ns, false, deadline);
  r.program.retained_step = kNoStep;  // this rank has no contribution to retry
  return ended.ok() && comm.failed() ? note(r, comm.failure())
                                     : ended;  // the results may have arrived before
}

}  // namespace weft
