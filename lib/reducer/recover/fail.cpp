// weft_reducer_fail. This rank notifies all others, then takes part in the rest of the step with zeros. No
// rank thus waits in vain, and the next step finds all of them at the same point. Threads: one thread at a
// time, as begin and finish.
#include <algorithm>
#include <mutex>

#include "base/text.h"
#include "core/context.h"
#include "reducer/feature/fused_cast/fused_cast.h"
#include "reducer/reducer.h"

namespace weft {

Status Reducer::fail(std::string_view text) {
  WEFT_TRY(settle_finish());
  WEFT_TRY(note(outside_capture("fail")));
  const StepWord step = state_->readiness->step();
  if (!step.open())
    return note(
        Status::error(Code::kState, "weft_reducer_fail: no step is open; call weft_reducer_begin first"));
  if (step.local()) return fail_local(text);
  publish(FinishRecord{.flags = FinishRecord::kJoined});
  const Status ended = fail_step(text);
  return ended.code() == Code::kStepFailed && !state_->comm->failed() ? Status() : ended;
}

// Marks the accumulation as failed: the synchronised step that sums it up will fail, and the other ranks are
// notified then.
Status Reducer::fail_local(std::string_view text) {
  WEFT_TRY(finish_local());
  if (!fail_next_) fail_next_.emplace(text);
  return {};
}

// Ends the open synchronised step. Returns kStepFailed, or how the step ended otherwise. If some rank may
// complete the step without this one, the communicator fails, because no rank may keep results that lack a
// part.
Status Reducer::fail_step(std::string_view text) {
  const ReducerState& s = *state_;
  Comm& comm = *s.comm;
  const uint64_t entered_ns = comm.context().clock().now_ns();
  const Deadline deadline = comm.op_deadline(timeout_ms_);
  step_->set_deadline(deadline);
  step_->stop();
  if (!comm.failed() && may_be_left_out()) {
    fail_comm(text);
  } else if (!comm.failed()) {
    fill_missing(deadline);
    const auto over = [&] { return step_->finished(stamp_) || comm.failed(); };
    const auto stopped = [&] { return step_->stopped() != Step::Stopped::kNot || over(); };
    if (!comm.context().engine().wait(stopped, deadline) && Interrupt::requested())
      comm.fail(comm.interrupted(step_text()));
    const bool reduces = !step_->finished(stamp_) || step_->handshake().outcome == StepOutcome::kReduce;
    if (step_->stopped() == Step::Stopped::kInTime || comm.size() == 1) {
      publish_failure(text, deadline);
    } else if (reduces && !comm.failed()) {
      fail_comm(text);
    }
  }
  const Status ended = wait_for_step(entered_ns, false, deadline);
  retained_step_ = kNoStep;  // this rank has no contribution to retry
  return ended.ok() && comm.failed() ? note(comm.failure()) : ended;  // the results may have arrived before
}

void Reducer::fail_comm(std::string_view text) {
  const int rank = state_->comm->rank();
  // Not kStepFailed, which says that the next step works.
  state_->comm->fail(Status::error(Code::kAborted, cat("rank ", rank, ": ", StepFailures::cut(text),
                                                       " (it called weft_reducer_fail in ", step_text(),
                                                       ", which other ranks may complete without it)"))
                         .with_ranks({rank})
                         .with_step(stats_.steps));
}

// True if other ranks may skip a bucket with WEFT_BEGIN_FIXED, because all of its parameters are absent
// there. This rank cannot tell whether they do while none of a bucket's parameters is ready and some are
// missing.
bool Reducer::may_be_left_out() const {
  const ReducerState& s = *state_;
  const uint32_t stamp = s.readiness->step().stamp();
  if (!start_.fixed || s.comm->size() == 1) return false;
  const auto missing = [&](uint32_t param) { return !s.readiness->claimed(param, stamp); };
  const auto unknown = [&](const PlannedBucket& bucket) {
    const std::vector<uint32_t>& params = bucket.params;
    return std::any_of(params.begin(), params.end(), missing) &&
           std::all_of(params.begin(), params.end(),
                       [&](uint32_t param) { return missing(param) || s.presence->absent(param, stamp); });
  };
  return std::any_of(s.plan.buckets.begin(), s.plan.buckets.end(), unknown);
}

void Reducer::publish_failure(std::string_view text, Deadline deadline) {
  const ReducerState& s = *state_;
  const Bytes message = StepFailures::encode(attempt(), text);
  s.failures->on_lane_message(s.comm->rank(), message);
  const Status notified = s.comm->lane_messages().send(s.lane->key().id, message, deadline);
  if (notified.ok()) return;
  s.comm->fail(
      Interrupt::requested()
          ? s.comm->interrupted(step_text())
          : notified.with_prefix(cat("reporting the failure of ", step_text(), " to the other ranks: "))
                .with_step(stats_.steps));
}

// Contributes zeros for the parameters that are not ready; they receive no result.
void Reducer::fill_missing(Deadline deadline) {
  ReducerState& s = *state_;
  const uint32_t stamp = s.readiness->step().stamp();
  std::unique_lock<std::mutex> uses;
  if (s.uses && s.uses->learning()) {
    uses = std::unique_lock(s.uses->mutex(), std::defer_lock);
    if (!s.comm->context().engine().wait([&] { return uses.try_lock(); }, deadline)) {
      s.comm->fail(still_copied(s.uses->copied(), "the first step (WEFT_REDUCER_STATIC)"));
      return;
    }
  }
  for (uint32_t i = 0; i < s.manifest.params.size(); i++) {
    if (!has_bucket(i) || !s.readiness->claim(i, stamp)) continue;
    const Buckets::Place& place = s.buckets->place(i);
    if (!s.gradients.empty()) s.gradients[i] = nullptr;
    if (place.sparse) {
      s.sparse->of(i)->leave_empty();
    } else {
      clear_place(start_.fused_cast ? fused_cast_place(s, i) : place);
    }
    arrive(place.bucket);
  }
}

// Closes a step that failed on all ranks; its results are invalid everywhere. What local steps have
// accumulated for it is lost.
Status Reducer::close_failed(const Status& failed) {
  const ReducerState& s = *state_;
  s.readiness->close();
  next_window();
  if (start_.noting) s.order->begin();  // the recorded order may lack gradients
  failed_attempts_++;
  note_handshake(true, false);
  const std::lock_guard lock(mutex_);
  stats_.failed_steps++;
  return last_error_ = failed;
}

// Starts a new accumulation window for the next step.
void Reducer::next_window() {
  state_->presence->next_window();
  fail_next_.reset();
}

}  // namespace weft
