// Parameters without a gradient in a step, ranks without data in a step, and ranks that have run out of data.
#include <algorithm>

#include "base/arguments.h"
#include "base/splitmix.h"
#include "base/text.h"
#include "core/context.h"
#include "reducer/feature/fused_cast/fused_cast.h"
#include "reducer/reducer.h"

namespace weft {

Status Reducer::absent(const uint64_t* params, uint64_t count) {
  if (params == nullptr && count > 0)
    return note(Status::error(Code::kArg, cat("weft_reducer_absent: params is NULL, but count is ", count)));
  ReducerState& s = *state_;
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t param = params[i];
    const StepWord step = s.readiness->step();
    const bool possible = has_bucket(param) && step.open() && (step.local() || s.mapped || start_.fixed) &&
                          (!s.comm->failed() || s.retain);
    if (possible && !step.local() && !s.readiness->claimed(param, step.stamp()))
      WEFT_TRY(note(check_sum(param)));
    if (!possible || !s.readiness->leave_out(param, step.stamp())) {
      return note(absent_refused(param, step));
    }
    if (step.local()) continue;
    if (s.awaits_sum(param)) {
      WEFT_TRY(take(param, {destination(param)}, step));
      continue;
    }
    if (leave_out(param, step.stamp()))
      clear_place(start_.fused_cast ? fused_cast_place(s, param) : s.buckets->place(param));
    arrive(s.buckets->place(param).bucket);
  }
  return {};
}

Status Reducer::absent_refused(uint64_t param, StepWord step) const {
  WEFT_TRY(known(param));
  const std::string name = cat("parameter ", param, " ('", state_->manifest.params[param].name, "')");
  if (capturing())
    return Status::error(Code::kUnsupported,
                         cat(name,
                             " cannot be absent from a captured step (WEFT_BEGIN_CAPTURE): every parameter "
                             "needs a gradient there"));
  if (!step.open())
    return Status::error(Code::kState,
                         cat(name, " cannot be absent: no step is open. Call weft_reducer_begin first"));
  if (state_->comm->failed() && !state_->retain) return state_->comm->failure();
  if (!step.local() && !state_->mapped && !start_.fixed) {
    return Status::error(
        Code::kState,
        cat(name,
            " cannot be absent: create the reducer with WEFT_REDUCER_ABSENT, or begin the step with "
            "WEFT_BEGIN_FIXED if the same parameters are absent on all ranks"));
  }
  const bool twice = state_->presence->absent(param, step.stamp());
  if (!twice && used(param, step.stamp()) && !state_->readiness->claimed(param, step.stamp())) {
    const std::string uses = uses_text(param, step);
    return Status::error(Code::kState, cat(name, " cannot be absent: it is in use in this step already",
                                           uses.empty() ? "" : ", and became ready ", uses));
  }
  return Status::error(Code::kState,
                       cat(name, twice ? " is absent already in this step"
                                       : " is ready already in this step, so it cannot be absent"));
}

// Excludes a claimed parameter. True: it is absent and contributes zeros. False: it contributes what local
// steps have accumulated.
bool Reducer::leave_out(uint64_t param, uint32_t stamp) {
  ReducerState& s = *state_;
  const bool device_view = !s.copy && s.buckets->place(param).on_device;
  if (s.copy) {
    s.gradients[param] = destination(param);
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

// Refuses to leave out a parameter whose sum of local steps would be lost: the program has it, and has not
// said where.
Status Reducer::check_sum(uint64_t param) const {
  const ReducerState& s = *state_;
  const Buckets::Place& place = s.buckets->place(param);
  if (!s.awaits_sum(param) || (!place.sparse && (place.count == 0 || destination(param) != nullptr)))
    return {};
  return Status::error(
      Code::kState,
      cat("parameter ", param, " ('", s.manifest.params[param].name,
          "') was ready in a local step, and would lose its gradient by being absent from the synchronised "
          "step: hand its sum over with ",
          place.sparse ? "weft_reducer_ready_sparse"
                       : "weft_reducer_ready, or set weft_param.gradient to where it lies",
          " (weft_reducer_options.accumulation is WEFT_ACCUMULATION_PROGRAM)"));
}

std::byte* Reducer::destination(uint64_t param) const {
  void* const given = destinations_ != nullptr ? destinations_[param] : nullptr;
  return given != nullptr ? static_cast<std::byte*>(given) : state_->manifest.gradient(param);
}

// Begins a step without data. start: as for a step with data. Accumulated gradients count as data. Step
// writes the zeros once the step is known to take place, so that until then results of the last step stay
// untouched.
Status Reducer::begin_without_data(StepStart start, bool joined) {
  const uint64_t params = state_->manifest.params.size();
  for (uint64_t i = 0; i < params; i++) {
    if (has_bucket(i)) WEFT_TRY(check_sum(i));
  }
  bool accumulated = false;
  next_stamp();
  for (uint64_t i = 0; i < params; i++) {
    if (!has_bucket(i)) continue;
    accumulated |= !leave_out(i, stamp_);
    if (state_->awaits_sum(i)) bring(i, {destination(i)}, StepWord::make(stamp_, true, false));
  }
  start.zeros = true;
  start.record.flags = accumulated ? HandshakeRecord::kData : 0;
  start.record.flags |= HandshakeRecord::kZeros;
  if (joined) start.record.flags |= HandshakeRecord::kJoined;
  open_step(start, true);
  return {};
}

// Closes a step in which the ranks found nothing to reduce.
Status Reducer::not_reduced() {
  state_->readiness->close();
  reduced_ = false;
  const StepHandshake& handshake = step_->handshake();
  if (handshake.outcome == StepOutcome::kOver) drop_window();
  if (handshake.outcome != StepOutcome::kExhausted) return {};  // the statistics stay those of the last step
  next_window();                                                // drops what was accumulated for the step
  failed_attempts_++;
  note_handshake(true, false);
  return note(
      Status::error(
          Code::kState,
          cat(step_text(), " was not reduced: ranks [", list_text(handshake.joined),
              "] have no more data, and WEFT_REDUCER_STOP_WHEN_EXHAUSTED is set: end the epoch on all ranks"))
          .with_ranks(handshake.joined));
}

// Drops the accumulated gradients after all ranks have joined: no sum is left to add them to. The next step
// begins with other data.
void Reducer::drop_window() {
  const ReducerState& s = *state_;
  if (start_.record.has(HandshakeRecord::kData)) {
    s.comm->context().log().warn(cat("rank ", s.comm->rank(), ": gradients of ", start_.local_steps,
                                     " local steps are dropped: all ranks have joined, and no synchronised "
                                     "step follows that would reduce them"));
  }
  next_window();
}

// Updates the statistics of the step. over: false if the step was given up. It may then still run, and its
// handshake's outcome is unknown.
void Reducer::note_handshake(bool over, bool reduced) {
  const ReducerState& s = *state_;
  uint64_t absent = 0, everywhere = 0, bytes = 0, pattern = 0;
  for (uint32_t i = 0; (s.mapped || start_.fixed) && i < s.manifest.params.size(); i++) {
    if (!s.presence->absent(i, synchronised_)) continue;
    absent++;
    bytes += s.manifest.params[i].bytes();
    pattern = scramble(pattern + i + 1);
    if (reduced) everywhere += step_->absent_everywhere(i) ? 1 : 0;
  }
  const StepHandshake unknown{.divisor = 0, .joined = {}};
  const StepHandshake& handshake = over ? step_->handshake() : unknown;
  if (reduced) last_active_ = handshake.last_active;
  const std::lock_guard lock(mutex_);
  stats_.active_ranks = handshake.active;
  stats_.first_active = handshake.first_active;
  stats_.last_active = handshake.last_active;
  stats_.divisor = handshake.divisor;
  stats_.skipped_buckets = over ? step_->skipped() : 0;
  stats_.absent_params = absent;
  stats_.absent_bytes = bytes;
  stats_.absent_everywhere = everywhere;
  if (reduced) history_.add_pattern(pattern);
}

Status Reducer::join(const weft_join_options& options, weft_join_result* result) {
  *result = {};
  result->struct_size = sizeof *result;
  result->last_active = -1;
  if (!state_->uneven) {
    return note(Status::error(Code::kState, "join: create the reducer with WEFT_REDUCER_UNEVEN"));
  }
  constexpr NamedValue kFinishFlags[] = {WEFT_NAMED(WEFT_FINISH_COMMIT)};
  WEFT_TRY(note(check_flags("weft_join_options.finish_flags", options.finish_flags, kFinishFlags)));
  WEFT_TRY(note(check_timeout("weft_join_options.timeout_ms", options.timeout_ms)));
  WEFT_TRY(settle_finish());
  const bool commit = options.finish_flags != 0 || state_->retain;
  destinations_ = nullptr;
  {
    // The last rank with data in the last step, which may be this rank. The result stays so if all ranks have
    // joined already and no step follows.
    const std::lock_guard lock(mutex_);
    if (stats_.steps > 0) result->last_active = stats_.last_active;
  }
  for (;;) {
    const ReducerState& s = *state_;  // a re-plan replaces it
    if (s.comm->failed()) return note(s.comm->failure());
    if (s.readiness->step().open()) {
      return note(
          Status::error(Code::kState, cat("weft_reducer_join inside ", step_text(), ": finish it first")));
    }
    WEFT_TRY(note(end_owed_gather()));
    StepStart start;
    start.local_steps = s.presence->local_steps();
    WEFT_TRY(note(begin_without_data(start, true)));
    publish(FinishRecord{.flags = FinishRecord::kJoined});
    WEFT_TRY(await_pre_step(options.timeout_ms != 0 ? options.timeout_ms : timeout_ms_));
    const std::string text = fail_next_.value_or("");  // a copy, because fail_step resets fail_next_
    const Status ended = fail_next_
                             ? fail_step(text)
                             : wait_for_step(s.comm->context().clock().now_ns(), commit,
                                             options.timeout_ms != 0 ? options.timeout_ms : timeout_ms_);
    if (ended.code() == Code::kStepFailed) continue;  // the other ranks handle the failure
    WEFT_TRY(ended);
    const StepOutcome outcome = step_->handshake().outcome;
    if (outcome == StepOutcome::kOver) return {};
    if (outcome == StepOutcome::kReplan) {
      // An invalid request of the other ranks is their error; the old plan stays.
      const Status planned = take_plan(nullptr, {});
      if (!planned.ok() && state_->comm->failed()) return note(planned);
      continue;
    }
    if (outcome == StepOutcome::kGather) {
      start_gather(options.timeout_ms, Status(), false);
      const Status gathered = settle_gather();
      if (!gathered.ok() && s.comm->failed()) return note(gathered);
      continue;
    }
    result->steps++;
    result->last_active = step_->handshake().last_active;
  }
}

Status Reducer::result(uint64_t param, void* gradient) {
  WEFT_TRY(settle_finish());
  ReducerState& s = *state_;
  WEFT_TRY(note(known(param)));
  const std::string name = cat("parameter ", param, " ('", s.manifest.params[param].name, "'): ");
  const Buckets::Place& place = s.buckets->place(param);
  if (place.sparse)
    return note(Status::error(
        Code::kArg,
        name + "its gradient is sparse: call weft_reducer_sparse_result instead of weft_reducer_result"));
  if (gradient == nullptr && place.count > 0) {
    return note(Status::error(Code::kArg, cat(name, "the gradient given to weft_reducer_result is NULL")));
  }
  if (reinterpret_cast<uintptr_t>(gradient) % place.gradient_bytes != 0) {
    return note(Status::error(
        Code::kArg, cat(name, "the gradient given to weft_reducer_result is not aligned to its elements of ",
                        int{place.gradient_bytes}, " bytes")));
  }
  WEFT_TRY(note(check_result(param)));
  if (place.on_device) return note(result_on_device(param, gradient).with_prefix(name));
  const Owned mine = s.ownership ? s.ownership->of(s.comm->rank(), param) : Owned{0, place.count};
  if (mine.count > 0) {
    // In view mode the result is in the view.
    const Dtype dtype = s.copy ? s.comm_dtype(place.bucket) : place.dtype;
    const std::byte* const from =
        s.copy ? result_of(s, place.bucket) + s.plan.offset_of[param] * dtype_size(dtype) : place.memory;
    place.layout->unflatten(s.comm->context().host(), from, dtype, static_cast<std::byte*>(gradient),
                            mine.first, mine.count, s.copy ? step_->factor_of(place.bucket) : 1.0, false);
  }
  return {};
}

// Checks that there is a result.
Status Reducer::check_result(uint64_t param) const {
  const ReducerState& s = *state_;
  const auto refuse = [&](const char* why) {
    return Status::error(Code::kState,
                         cat("parameter ", param, " ('", s.manifest.params[param].name, "'): ", why));
  };
  if (!reduced_)
    return refuse("there is no result: the last step was not reduced, or the next one has begun");
  if (s.presence->absent(param, synchronised_) && step_->absent_everywhere(static_cast<uint32_t>(param))) {
    return refuse("it was absent on every rank in the last step, so it has no result");
  }
  const bool aside = s.copy || s.buckets->place(param).sparse;  // results are not where the gradients are
  if (aside && s.norms && s.norms->decision.skipped)
    return refuse("the last step was skipped, so it has no results (weft_norms.skipped is 1)");
  return {};
}

Status Reducer::param(uint64_t param, weft_param_info* info) const {
  const ReducerState& s = *state_;
  *info = {};
  info->struct_size = sizeof *info;
  if (param >= s.manifest.params.size()) return known(param);
  const Buckets::Place& place = s.buckets->place(param);
  info->bucket = place.bucket;
  info->offset = s.plan.offset_of[param];
  info->count = s.manifest.params[param].count;
  info->absent = synchronised_ != 0 && s.presence->absent(param, synchronised_);
  info->absent_everywhere =
      info->absent && reduced_ && step_->absent_everywhere(static_cast<uint32_t>(param));
  return {};
}

}  // namespace weft
