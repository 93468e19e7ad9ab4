#include "reducer/reducer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/arguments.h"
#include "base/text.h"
#include "core/context.h"
#include "reducer/feature/fused_cast/fused_cast.h"
#include "reducer/grace.h"
#include "reducer/host_stream.h"

namespace weft {
namespace {

constexpr int64_t kSealMs = 2000;      // for a piece of a result that is being copied into its gradient
constexpr int64_t kSettleMs = 10'000;  // for the end of an interrupted step, which has failed

}  // namespace

Status Reducer::grad_view(uint64_t param, void** view) {
  *view = nullptr;
  const std::shared_ptr<ReducerState> state = parts().state;
  if (state->copy)
    return note(Status::error(
        Code::kState, "the reducer is in copy mode and has no views: create it with WEFT_GRADIENT_VIEW"));
  WEFT_TRY(note(known(*state, param)));
  const Buckets::Place& place = state->buckets->place(param);
  if (place.sparse) return note(no_dense_gradient(*state, param));
  *view = place.on_device ? state->views_on_devices->of(param) : place.memory;
  return {};
}

Status Reducer::check_begin(const weft_begin_options& options) const {
  constexpr NamedValue kFlags[] = {WEFT_NAMED(WEFT_BEGIN_LOCAL), WEFT_NAMED(WEFT_BEGIN_NO_DATA),
                                   WEFT_NAMED(WEFT_BEGIN_FIXED), WEFT_NAMED(WEFT_BEGIN_RECORD),
                                   WEFT_NAMED(WEFT_BEGIN_CAPTURE)};
  if (options.flags != 0) WEFT_TRY(check_flags("weft_begin_options.flags", options.flags, kFlags));
  if (options.reserved != 0)
    return Status::error(Code::kArg,
                         cat("weft_begin_options.reserved is ", options.reserved, ", but must be 0"));
  if ((options.flags & WEFT_BEGIN_LOCAL) != 0) WEFT_TRY(check_accumulation());
  if ((options.flags & WEFT_BEGIN_NO_DATA) != 0) {
    if (!state_->uneven) {
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
  if (state_->rules.divide_by != WEFT_DIVIDE_WEIGHTS) {
    return Status::error(Code::kArg,
                         cat("weft_begin_options.weight is ", options.weight,
                             ", which needs a reducer created with divide_by WEFT_DIVIDE_WEIGHTS"));
  }
  return {};
}

// Refuses a local step whose meaning the program has not chosen.
Status Reducer::check_accumulation() const {
  if (state_->accumulation != WEFT_ACCUMULATION_UNSET || !state_->needs_accumulation()) return {};
  return Status::error(
      Code::kState,
      cat("WEFT_BEGIN_LOCAL needs a choice in weft_reducer_options.accumulation: "
          "WEFT_ACCUMULATION_PROGRAM if the program adds up micro-batches in its gradients, as PyTorch does "
          "under no_sync",
          state_->copy ? ", or WEFT_ACCUMULATION_REDUCER if each ready hands over the gradient of its "
                         "micro-batch alone"
                       : ", so that ready hands over their sum also for sparse gradients and for gradients "
                         "outside their views"));
}

Status Reducer::check_destinations(void* const* gradients) const {
  if (gradients == nullptr) return {};
  if (!state_->copy)
    return Status::error(Code::kArg,
                         "weft_begin_options.gradients is set, but the reducer is in view mode, in which "
                         "results are in the views: pass NULL");
  for (uint64_t i = 0; i < state_->manifest.params.size(); i++) {
    if (!has_bucket(i)) continue;
    if (reinterpret_cast<uintptr_t>(gradients[i]) % state_->buckets->place(i).gradient_bytes == 0) {
      if (gradients[i] != nullptr)
        WEFT_TRY(check_gradient_memory(i, gradients[i])
                     .with_prefix(cat("weft_begin_options.gradients[", i, "] ('",
                                      state_->manifest.params[i].name, "'): ")));
      continue;
    }
    return Status::error(
        Code::kArg, cat("weft_begin_options.gradients[", i, "] ('", state_->manifest.params[i].name, "') is ",
                        gradients[i], ", which is not aligned to its ",
                        int{state_->buckets->place(i).gradient_bytes}, "-byte elements"));
  }
  return {};
}

Status Reducer::begin(const weft_begin_options* options) {
  const weft_begin_options given = options != nullptr ? *options : weft_begin_options WEFT_BEGIN_OPTIONS_INIT;
  WEFT_TRY(settle_finish());
  if (state_->comm->failed()) return note(state_->comm->failure());
  if (state_->readiness->step().open()) {
    return note(Status::error(Code::kState, cat("begin inside ", step_text(), ": finish it first")));
  }
  WEFT_TRY(note(outside_capture("begin")));
  if ((given.flags & WEFT_BEGIN_CAPTURE) != 0 && check_begin(given).ok()) return note(begin_captured(given));
  WEFT_TRY(note(check_begin(given)));
  WEFT_TRY(note(check_destinations(given.gradients)));
  WEFT_TRY(note(end_owed_gather()));
  notice_devices();
  reduced_ = false;
  finish_again_ = false;
  destinations_ = given.gradients;
  if ((given.flags & WEFT_BEGIN_LOCAL) != 0) {
    state_->readiness->open(next_stamp(), true);
    return {};
  }
  WEFT_TRY(note(replan_by_itself()));
  StepStart start;
  start.record.micro_batches = std::max<uint32_t>(given.micro_batches, 1);
  start.record.weight = given.weight == 0.0 ? 1.0 : given.weight;
  start.local_steps = state_->presence->local_steps();
  start.fused_cast = begins_with_fused_casts(*state_);
  state_->fused_divisor = even_handshake(state_->comm->size(), start.record.micro_batches).divisor;
  start.fixed = (given.flags & WEFT_BEGIN_FIXED) != 0;
  if (start.fixed) start.record.flags |= HandshakeRecord::kFixed;
  // While uses are learned, gradients are taken at the end of the step, in an order without meaning.
  const bool learning = state_->uses && state_->uses->learning();
  start.noting = !learning && ((given.flags & WEFT_BEGIN_RECORD) != 0 || !state_->order->noted());
  if ((given.flags & WEFT_BEGIN_NO_DATA) != 0) {
    WEFT_TRY(note(begin_without_data(start, false)));
    return await_pre_step(timeout_ms_);
  }
  next_stamp();
  open_step(start, false);
  WEFT_TRY(await_pre_step(timeout_ms_));
  Status left = leave_out_unused();
  if (left.ok() || !state_->comm->failed()) return left;
  return wait_for_step(state_->comm->context().clock().now_ns(), false, timeout_ms_);  // no step stays open
}

uint32_t Reducer::next_stamp() {
  if (++stamp_ == 0) stamp_ = 1;
  return stamp_;
}

// Opens a synchronised step with the current stamp. full: all gradients are in their buckets already.
void Reducer::open_step(const StepStart& start, bool full) {
  retained_step_ = kNoStep;
  results_ = false;
  synchronised_ = stamp_;
  start_ = start;
  start_.number = start_.record.step = stats_.steps;
  start_.begin_ns = state_->comm->context().clock().now_ns();
  if (state_->pre_step) {
    const bool may_be_root = state_->pre_step->may_be_root(
        state_->comm->rank(), start_.record.has(HandshakeRecord::kData), state_->comm->size());
    start_.digest = state_->pre_step->open(state_->manifest, *state_->buckets, start_.number, may_be_root);
  }
  if (full && state_->devices) fail_device(state_->devices->record_all(stamp_), 0);
  step_->prepare(start_);
  if (start.noting)
    state_->order->begin();  // a step without data records nothing, and what was recorded is out of date
  state_->readiness->open(stamp_, false, full, start.noting && !full);
  if (full) state_->comm->context().engine().notify();
}

Status Reducer::check_finish(const weft_finish_options& options) const {
  constexpr uint64_t kOfNorms = WEFT_FINISH_SKIP | WEFT_FINISH_SKIP_NONFINITE;
  constexpr NamedValue kFlags[] = {WEFT_NAMED(WEFT_FINISH_COMMIT), WEFT_NAMED(WEFT_FINISH_REST_ABSENT),
                                   WEFT_NAMED(WEFT_FINISH_SKIP), WEFT_NAMED(WEFT_FINISH_SKIP_NONFINITE)};
  if (options.flags != 0) WEFT_TRY(check_flags("weft_finish_options.flags", options.flags, kFlags));
  if (!std::isfinite(options.clip_norm) || options.clip_norm < 0) {
    return Status::error(Code::kArg, cat("weft_finish_options.clip_norm is ", options.clip_norm,
                                         ": allowed are finite numbers above 0, and 0 for no clipping"));
  }
  const bool decision = (options.flags & kOfNorms) != 0 || options.clip_norm != 0;
  if (decision && !state_->norms) {
    return Status::error(
        Code::kState,
        "weft_finish_options.clip_norm, WEFT_FINISH_SKIP and WEFT_FINISH_SKIP_NONFINITE need a "
        "reducer created with WEFT_REDUCER_NORMS");
  }
  if (decision && state_->readiness->step().open() && state_->readiness->step().local()) {
    return Status::error(Code::kState,
                         "a local step has no results: clip or skip when a synchronised step finishes");
  }
  if (!on_host(options.stream) && !state_->devices) {
    return no_streams().with_prefix(
        "weft_finish_options.stream is set, but the reducer has no gradients on devices: ");
  }
  return {};
}

Status Reducer::finish(const weft_finish_options& options) {
  const uint64_t entered_ns = state_->comm->context().clock().now_ns();
  if (finishing_) return settle_finish();
  const StepWord step = state_->readiness->step();
  if (!step.open()) {
    if (std::exchange(finish_again_, false)) return {};
    return note(Status::error(Code::kState, "finish without begin: no step is open"));
  }
  Status status = finish_open(options, step, entered_ns);
  finish_again_ = status.ok() && !finishing_ && !on_host(options.stream);
  return status;
}

Status Reducer::finish_open(const weft_finish_options& options, StepWord step, uint64_t entered_ns) {
  ReducerState& s = *state_;
  WEFT_TRY(note(check_finish(options)));
  if (fail_next_ && !step.local()) {
    publish(FinishRecord{.flags = FinishRecord::kJoined});
    const std::string text = *fail_next_;  // a copy, because fail_step resets fail_next_
    return fail_step(text);
  }
  const bool shows_uses = step.local() || !start_.zeros;  // a step without data shows no uses
  // After a failure missing gradients stay missing, and the step ends all the same.
  const bool wanted = !s.comm->failed() || s.retain || step.local();
  if (s.uses && s.uses->learning() && shows_uses && wanted) {
    if (Status taken = take_learned(step); !taken.ok() && !s.comm->failed()) return taken;
  }
  if (step.local()) return finish_local();
  if ((options.flags & WEFT_FINISH_REST_ABSENT) != 0 && wanted) {
    for (uint64_t param = 0; param < s.manifest.params.size(); param++) {
      // A parameter with too few uses is missing, not absent.
      const bool came = s.readiness->claimed(param, step.stamp()) || used(param, step.stamp());
      if (!has_bucket(param) || came) continue;
      if (Status left = absent(&param, 1); !left.ok() && !s.comm->failed()) return left;
    }
  }
  if (!s.comm->failed()) {
    // A claimed parameter that has not arrived is no error: another thread is copying it right now.
    if (!s.readiness->full()) {
      if (const auto missing = s.readiness->missing(); !missing.empty()) return never_ready(missing);
    }
  }
  publish(options);
  step_->let_end();
  if (!s.comm->failed() && leave_to_streams(options, entered_ns)) return {};
  return wait_for_step(entered_ns, (options.flags & WEFT_FINISH_COMMIT) != 0 || s.retain, timeout_ms_);
}

// Passes finish's request to the step, once this rank has found no error in the step.
void Reducer::publish(const weft_finish_options& options) {
  FinishRecord record;
  record.clip_norm = options.clip_norm;
  if ((options.flags & WEFT_FINISH_SKIP) != 0) record.flags |= FinishRecord::kSkip;
  if ((options.flags & WEFT_FINISH_SKIP_NONFINITE) != 0) record.flags |= FinishRecord::kSkipNonfinite;
  publish(record);
}

// Does nothing if the gradients have no norms.
void Reducer::publish(const FinishRecord& request) {
  if (!state_->norms) return;
  state_->norms->publish(request);
  state_->comm->context().engine().notify();
}

// Waits for the step's end. All gradients are ready, or the communicator has failed.
Status Reducer::wait_for_step(uint64_t entered_ns, bool commit_it, Deadline deadline) {
  ReducerState& s = *state_;
  Context& context = s.comm->context();
  step_->set_deadline(deadline);
  step_->let_end();
  const Deadline give_up = with_grace(deadline);
  const auto over = [&] { return step_->finished(stamp_); };
  const auto wait = [&] {
    if (!s.worker || s.hook->stage_kind() == StageKind::kForeign) return context.engine().wait(over, give_up);
    StageWorker::Helper helper(context.stages(), &s);
    return context.engine().wait(over, give_up, helper);
  };
  bool ended = wait();
  if (!ended && Interrupt::requested()) {
    s.comm->fail(s.comm->interrupted(step_text()));
    ended = context.engine().settle(over, Deadline::after(context.clock(), kSettleMs, 0).earlier(give_up));
  }
  constexpr std::string_view kUnsealed =
      "Weft is still reading gradients or writing results into them, so do not free or reuse their memory";
  bool sealed = true;
  if (!ended) {
    sealed = step_->seal(Deadline::after(context.clock(), kSealMs, 0));
    const std::string stuck =
        sealed ? cat("the step did not end after its deadline: the progress thread or a stage of hook '",
                     s.hook->name(), "' does not return")
               : std::string(kUnsealed);
    s.comm->fail(Status::error(Code::kTimeout, cat("rank ", s.comm->rank(), ", ", step_text(), ": ", stuck),
                               Evidence::kDeadline)
                     .with_ranks({s.comm->rank()}));
  }
  // Gradients may still arrive after a failure, and are kept. A copy by another thread is completed first.
  const auto settled = [&] { return s.readiness->settled(); };
  if (!context.engine().wait(settled, give_up) && Interrupt::requested())
    context.engine().settle(settled, Deadline::after(context.clock(), kSettleMs, 0).earlier(give_up));
  if (step_->finished(stamp_) && step_->handshake().outcome != StepOutcome::kReduce) return not_reduced();
  if (reduced()) {
    if (Status failed = s.failures->of(attempt()); !failed.ok()) return close_failed(failed);
  }
  Status closed = close_step(entered_ns);
  // The communicator may have failed earlier for another reason.
  if (!sealed && !closed.ok() && closed.text().find(kUnsealed) == std::string::npos)
    return note(closed.with_prefix(cat(kUnsealed, ": ")));
  WEFT_TRY(closed);
  return commit_it ? commit(deadline) : Status();
}

// Makes the error for a ready call that has not returned when finish has waited for it.
Status Reducer::still_copied(uint64_t param, const char* step) const {
  const int rank = state_->comm->rank();
  return Status::error(Code::kTimeout,
                       cat("rank ", rank, ": parameter ", param, " ('", state_->manifest.params[param].name,
                           "') is still being copied by a call of weft_reducer_ready in ", step,
                           ". The step is still open: finish it when that has returned"),
                       Evidence::kDeadline)
      .with_ranks({rank});
}

Status Reducer::finish_local() {
  const ReducerState& s = *state_;
  s.readiness->close();
  const Deadline deadline = s.comm->op_deadline(timeout_ms_);
  for (uint64_t i = 0; i < s.manifest.params.size(); i++) {
    if (!s.readiness->copying(i)) continue;
    // Another thread is copying it right now.
    if (s.comm->context().engine().wait([&] { return !s.readiness->copying(i); }, deadline)) continue;
    s.readiness->reopen();
    return note(still_copied(i, "a local step"));
  }
  s.presence->note_local_step();
  const std::lock_guard lock(mutex_);
  stats_.local_steps++;
  if (!state_->comm->failed()) return {};
  return last_error_ = state_->comm->failure();
}

Status Reducer::never_ready(const std::vector<uint32_t>& missing) {
  const uint32_t first = missing.front();
  const std::string uses = uses_text(first, state_->readiness->step());
  return note(Status::error(
      Code::kState,
      cat(missing.size(), " of ", state_->manifest.params.size(), " parameters never became ready in ",
          step_text(), " on rank ", state_->comm->rank(), ": ",
          state_->manifest.names(missing, missing.size()),
          uses.empty() ? "" : cat(" ('", state_->manifest.params[first].name, "' became ready ", uses, ")"),
          ". The step is still open: make them ready, or declare them absent (WEFT_REDUCER_ABSENT), and "
          "finish again")));
}

// True if every bucket of the step has its result.
bool Reducer::reduced() const {
  for (uint32_t b = 0; b < bucket_count(); b++) {
    if (!step_->done(b, stamp_)) return false;
  }
  return step_->finished(stamp_);
}

// Updates statistics and state after the end of a step.
Status Reducer::close_step(uint64_t entered_ns) {
  ReducerState& s = *state_;
  Context& context = s.comm->context();
  const bool over = step_->finished(stamp_);
  uint64_t bytes = 0;
  uint64_t entries = 0, sent_entries = 0;  // bytes of sparse gradients
  uint32_t done = 0;
  for (uint32_t b = 0; b < bucket_count(); b++) {
    if (!step_->done(b, stamp_)) continue;
    bytes += s.plan.buckets[b].bytes();
    if (over && s.plan.buckets[b].sparse) {
      entries += reduced_bytes(b);
      sent_entries += step_->times(b).least_bytes;
    }
    done++;
  }
  const uint64_t now_ns = context.clock().now_ns();
  if (TraceSink* trace = context.trace(); trace != nullptr) {
    TraceEvent event;
    event.kind = TraceKind::kStep;
    event.name = "step";
    event.begin_ns = start_.begin_ns;
    event.end_ns = now_ns;
    event.rank = s.comm->rank();
    event.lane = s.lane->key().id;
    event.index = stats_.steps;
    event.bytes = bytes;
    trace->record(event);
  }
  const bool reduced = this->reduced();
  const std::string text = reduced ? std::string() : step_text();
  s.readiness->close();
  if (s.retain && over && s.readiness->full() && step_->bring_rest(s.comm->op_deadline(timeout_ms_))) {
    retained_step_ = stats_.steps;
    retained_buckets_ = step_->retained();
  }
  note_handshake(over, reduced);
  if (reduced) note_error_memory();
  const std::lock_guard lock(mutex_);
  stats_.bytes_reduced += bytes + entries;
  if (over) stats_.sent_bytes += step_->sent_bytes();
  const auto ranks = static_cast<uint64_t>(s.comm->size());
  stats_.plain_bytes += 2 * bytes * (ranks - 1) / ranks + sent_entries;
  note_times(entered_ns, now_ns, reduced);
  if (reduced) {
    // Also if the communicator failed just afterwards: every gradient has its result.
    finished_ = ++stats_.steps;
    failed_attempts_ = 0;
    may_retry_ = false;
    if (s.comm->size() == 1) step_->commit(stats_.steps);
    next_window();
    reduced_ = results_ = true;
    owed_.store(s.sharded && has_values_);
    measured_ = s.norms != nullptr;
    return {};
  }
  stats_.failed_steps++;
  std::string how_far = cat(done, " of ", bucket_count(), " buckets reduced");
  const Status failure = s.comm->failure();
  const std::string left = over ? step_->left_text() : std::string();
  if (!left.empty() && failure.text().find(left) == std::string::npos) how_far += cat(", ", left);
  last_error_ = failure.with_prefix(cat(text, ", ", how_far, ": ")).with_step(stats_.steps);
  return last_error_;
}

Status Reducer::error() const {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

Status Reducer::note(Status status) {
  if (status.ok()) return status;
  const std::lock_guard lock(mutex_);
  last_error_ = status;
  return status;
}

std::string Reducer::step_text() const {
  return state_->readiness->step().local() ? "a local step" : cat("step ", stats_.steps);
}

}  // namespace weft
