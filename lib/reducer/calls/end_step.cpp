#include "reducer/calls/end_step.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/splitmix.h"
#include "base/text.h"
#include "comm/context.h"
#include "reducer/calls/commit.h"
#include "reducer/calls/read.h"
#include "reducer/grace.h"

namespace weft {
namespace {

constexpr int64_t kSealMs = 2000;      // for a piece of a result that is being copied into its gradient
constexpr int64_t kSettleMs = 10'000;  // for the end of an interrupted step, which has failed

// True if every bucket of the step has its result.
bool is_reduced(const ReducerData& r) {
  for (uint32_t b = 0; b < bucket_count(*r.state); b++) {
    if (!r.step->done(b, r.program.stamp)) return false;
  }
  return r.step->finished(r.program.stamp);
}

// Records the largest error memory among the buckets, and warns once of one that keeps growing. It warns
// without the mutex, because the log may call the program's code.
void note_error_memory(ReducerData& r) {
  const ReducerState& s = *r.state;
  double largest = 0;
  uint32_t largest_at = 0;
  std::optional<uint32_t> growing;
  for (uint32_t b = 0; b < bucket_count(s); b++) {
    const std::optional<ErrorMemory> memory = r.step->times(b).error_memory;
    if (!memory) continue;
    if (memory->ratio > largest) {
      largest = memory->ratio;
      largest_at = b;
    }
    if (memory->growing && !growing) growing = b;
  }
  const bool warns = r.statistics.locked([&](Statistics::Values& v) {
    v.stats.hook_error = largest;
    v.stats.hook_error_bucket = largest_at;
    return growing && !std::exchange(v.warned_of_error_memory, true);
  });
  if (!warns) return;
  s.comm->context().log().warn(
      cat("rank ", s.comm->rank(), ", step ", r.statistics.steps(), ": the error memory of hook '",
          s.hook->name(), "' keeps growing in ", s.plan.text(s.manifest, *growing), ": it is ",
          r.step->times(*growing).error_memory->ratio,
          " times as large as the gradients, which degrades the training. Compress less, lower the "
          "learning rate, or create the hook with rescue=1"));
}

// Updates the statistics of the step. over: false if the step was given up. It may then still run, and its
// handshake's outcome is unknown.
void note_handshake(ReducerData& r, bool over, bool reduced) {
  const ReducerState& s = *r.state;
  uint64_t absent = 0, everywhere = 0, bytes = 0, pattern = 0;
  for (uint32_t i = 0; (s.has(WEFT_REDUCER_ABSENT) || r.program.start.fixed) && i < s.manifest.params.size();
       i++) {
    if (!s.presence->absent(i, r.program.synchronised)) continue;
    absent++;
    bytes += s.manifest.params[i].bytes();
    pattern = scramble(pattern + i + 1);
    if (reduced) everywhere += r.step->absent_everywhere(i) ? 1 : 0;
  }
  const StepHandshake unknown{.divisor = 0, .joined = {}};
  const StepHandshake& handshake = over ? r.step->handshake() : unknown;
  if (reduced) r.program.last_active = handshake.last_active;
  r.statistics.locked([&](Statistics::Values& v) {
    v.stats.active_ranks = handshake.active;
    v.stats.first_active = handshake.first_active;
    v.stats.last_active = handshake.last_active;
    v.stats.divisor = handshake.divisor;
    v.stats.skipped_buckets = over ? r.step->skipped() : 0;
    v.stats.absent_params = absent;
    v.stats.absent_bytes = bytes;
    v.stats.absent_everywhere = everywhere;
    if (reduced) v.history.add_pattern(pattern);
  });
}

void note_times(ReducerData& r, uint64_t entered_ns, uint64_t now_ns, bool reduced, Statistics::Values* v) {
  StepTimes times;
  times.step_ns = now_ns - r.program.start.begin_ns;
  times.compute_ns = entered_ns - r.program.start.begin_ns;
  times.exposed_ns = now_ns - entered_ns;
  const uint64_t first_ns = r.step->finished(r.program.stamp) ? r.step->first_launch_ns() : 0;
  if (first_ns != 0 && r.step->last_done_ns() > first_ns) {
    times.communication_ns = r.step->last_done_ns() - first_ns;
    const uint64_t end_ns = std::min(entered_ns, r.step->last_done_ns());
    times.overlap_ns = end_ns > first_ns ? end_ns - first_ns : 0;
  }
  v->stats.step_ns = times.step_ns;
  v->stats.compute_ns = times.compute_ns;
  v->stats.exposed_ns = times.exposed_ns;
  v->stats.communication_ns = times.communication_ns;
  v->stats.overlap_ns = times.overlap_ns;
  if (!reduced) return;
  v->history.add(times);
  v->history.add_waits(r.step->waits().waited_ns(), r.step->waits().straggler());
}

// Records the step, and in it the time since finish was entered.
void trace_step(const ReducerData& r, uint64_t entered_ns, uint64_t now_ns, uint64_t bytes) {
  const ReducerState& s = *r.state;
  TraceSink* const trace = s.comm->context().trace();
  if (trace == nullptr) return;
  TraceEvent event;
  event.kind = TraceKind::kStep;
  event.name = "step";
  event.begin_ns = r.program.start.begin_ns;
  event.end_ns = now_ns;
  event.comm = s.comm->options().id;
  event.rank = s.comm->rank();
  event.lane = s.lane->key().id;
  event.step = r.statistics.steps();
  event.bytes = bytes;
  trace->record(event);
  event.kind = TraceKind::kFinish;
  event.name = "finish";
  event.begin_ns = entered_ns;
  event.bytes = 0;
  trace->record(event);
}

// Updates statistics and state after the end of a step.
Status close_step(ReducerData& r, uint64_t entered_ns) {
  ReducerState& s = *r.state;
  Context& context = s.comm->context();
  const bool over = r.step->finished(r.program.stamp);
  uint64_t bytes = 0;
  uint64_t entries = 0, sent_entries = 0;  // bytes of sparse gradients
  uint32_t done = 0;
  for (uint32_t b = 0; b < bucket_count(s); b++) {
    if (!r.step->done(b, r.program.stamp)) continue;
    bytes += s.plan.buckets[b].bytes();
    if (over && s.plan.buckets[b].sparse) {
      entries += reduced_bytes(s, b);
      sent_entries += r.step->times(b).least_bytes;
    }
    done++;
  }
  const uint64_t now_ns = context.clock().now_ns();
  if (context.trace() != nullptr) trace_step(r, entered_ns, now_ns, bytes);
  const bool reduced = is_reduced(r);
  const std::string text = reduced ? std::string() : step_text(r);
  s.readiness->close();
  if (s.has(WEFT_REDUCER_RETAIN) && over && s.readiness->full() &&
      r.step->bring_rest(s.comm->op_deadline(r.timeout_ms))) {
    r.program.retained_step = r.statistics.steps();
    r.program.retained_buckets = r.step->retained();
  }
  note_handshake(r, over, reduced);
  if (reduced) note_error_memory(r);
  const auto ranks = static_cast<uint64_t>(s.comm->size());
  r.statistics.locked([&](Statistics::Values& v) {
    v.stats.bytes_reduced += bytes + entries;
    if (over) v.stats.sent_bytes += r.step->sent_bytes();
    v.stats.plain_bytes += 2 * bytes * (ranks - 1) / ranks + sent_entries;
    note_times(r, entered_ns, now_ns, reduced, &v);
    (reduced ? v.stats.steps : v.stats.failed_steps)++;
  });
  if (reduced) {
    // Also if the communicator failed just afterwards: every gradient has its result.
    r.program.finished = r.statistics.steps();
    r.program.failed_attempts = 0;
    r.program.may_retry = false;
    if (s.comm->size() == 1) r.step->commit(r.statistics.steps());
    next_window(r);
    r.program.reduced = r.program.results = true;
    r.gathering.owed.store(s.has(WEFT_REDUCER_SHARDED) && r.gathering.has_values);
    r.program.measured = s.norms != nullptr;
    return {};
  }
  std::string how_far = cat(done, " of ", bucket_count(s), " buckets reduced");
  const Status failure = s.comm->failure();
  const std::string left = over ? r.step->left_text() : std::string();
  if (!left.empty() && failure.text().find(left) == std::string::npos) how_far += cat(", ", left);
  return note(r, failure.with_prefix(cat(text, ", ", how_far, ": ")).with_step(r.statistics.steps()));
}

// Drops the accumulated gradients after all ranks have joined: no sum is left to add them to. The next step
// begins with other data.
void drop_window(ReducerData& r) {
  const ReducerState& s = *r.state;
  if (r.program.start.record.has(HandshakeRecord::kData)) {
    s.comm->context().log().warn(cat("rank ", s.comm->rank(), ": gradients of ", r.program.start.local_steps,
                                     " local steps are dropped: all ranks have joined, and no synchronised "
                                     "step follows that would reduce them"));
  }
  next_window(r);
}

// Closes a step that failed on all ranks; its results are invalid everywhere. What local steps have
// accumulated for it is lost.
Status close_failed(ReducerData& r, const Status& failed) {
  const ReducerState& s = *r.state;
  s.readiness->close();
  next_window(r);
  if (r.program.start.noting) s.order->begin();  // the recorded order may lack gradients
  r.program.failed_attempts++;
  note_handshake(r, true, false);
  r.statistics.locked([](Statistics::Values& v) { v.stats.failed_steps++; });
  return note(r, failed);
}

}  // namespace

Status wait_for_step(ReducerData& r, uint64_t entered_ns, bool commit, Deadline deadline) {
  ReducerState& s = *r.state;
  Context& context = s.comm->context();
  r.step->set_deadline(deadline);
  r.step->let_end();
  const Deadline give_up = with_grace(deadline);
  const auto over = [&] { return r.step->finished(r.program.stamp); };
  const auto wait = [&] {
    if (!s.worker || s.hook->stage_kind() == StageKind::kForeign) return context.engine().wait(over, give_up);
    StageWorker::Helper helper(context.stages(), &s);
    return context.engine().wait(over, give_up, helper);
  };
  bool ended = wait();
  if (!ended && Interrupt::requested()) {
    s.comm->fail(s.comm->interrupted(step_text(r)));
    ended = context.engine().settle(over, Deadline::after(context.clock(), kSettleMs, 0).earlier(give_up));
  }
  constexpr std::string_view kUnsealed =
      "Weft is still reading gradients or writing results into them, so do not free or reuse their memory";
  bool sealed = true;
  if (!ended) {
    sealed = r.step->seal(Deadline::after(context.clock(), kSealMs, 0));
    const std::string stuck =
        sealed ? cat("the step did not end after its deadline: the progress thread or a stage of hook '",
                     s.hook->name(), "' does not return")
               : std::string(kUnsealed);
    s.comm->fail(Status::error(Code::kTimeout, cat("rank ", s.comm->rank(), ", ", step_text(r), ": ", stuck),
                               Evidence::kDeadline)
                     .with_ranks({s.comm->rank()}));
  }
  // Gradients may still arrive after a failure, and are kept. A copy by another thread is completed first.
  const auto settled = [&] { return s.readiness->settled(); };
  if (!context.engine().wait(settled, give_up) && Interrupt::requested())
    context.engine().settle(settled, Deadline::after(context.clock(), kSettleMs, 0).earlier(give_up));
  if (r.step->finished(r.program.stamp) && r.step->handshake().outcome != StepOutcome::kReduce)
    return not_reduced(r);
  if (is_reduced(r)) {
    if (Status failed = s.failures->of(attempt_of(r)); !failed.ok()) return close_failed(r, failed);
  }
  Status closed = close_step(r, entered_ns);
  // The communicator may have failed earlier for another reason.
  if (!sealed && !closed.ok() && closed.text().find(kUnsealed) == std::string::npos)
    return note(r, closed.with_prefix(cat(kUnsealed, ": ")));
  WEFT_TRY(closed);
  return commit ? commit_step(r, deadline) : Status();
}

Status not_reduced(ReducerData& r) {
  r.state->readiness->close();
  r.program.reduced = false;
  const StepHandshake& handshake = r.step->handshake();
  if (handshake.outcome == StepOutcome::kOver) drop_window(r);
  if (handshake.outcome != StepOutcome::kExhausted) return {};  // the statistics stay those of the last step
  next_window(r);                                               // drops what was accumulated for the step
  r.program.failed_attempts++;
  note_handshake(r, true, false);
  return note(
      r,
      Status::error(
          Code::kState,
          cat(step_text(r), " was not reduced: ranks [", list_text(handshake.joined),
              "] have no more data, and WEFT_REDUCER_STOP_WHEN_EXHAUSTED is set: end the epoch on all ranks"))
          .with_ranks(handshake.joined));
}

void next_window(ReducerData& r) {
  r.state->presence->next_window();
  r.program.fail_next.reset();
}

}  // namespace weft
