// The stages of a step's hook. They run between its collectives, in place or on the context's worker, and may
// complete later. Called from Step::poll.
#include <algorithm>

#include "base/text.h"
#include "core/context.h"
#include "reducer/step/step.h"

namespace weft {
namespace {

// The time for a stage to return after the communicator has failed, unless the step's deadline passes first.
// The next call (rebind, destroy) then finds no stage of the hook running.
constexpr uint64_t kReturnNs = 1'000'000'000;

}  // namespace

void Step::run_stage(uint32_t bucket, bool joins) {
  if (s_.plan.buckets[bucket].sparse) return run_sparse_stage(bucket, joins);
  BucketRun& running = buckets_[bucket];
  if (s_.schedule.buckets[bucket].cast_to) {
    const Status skipped = running.job->skip(running.stages);
    return skipped.ok() ? stage_done(bucket, 0, 0) : fail_stage(s_, step_, buckets_[bucket], bucket, skipped);
  }
  weft_stage stage{};
  stage.struct_size = sizeof stage;
  stage.index = running.stages;
  if (running.stages > 0 && running.counted == running.stages - 1) {
    stage.counts = running.job->counts.data();
    stage.moved_count = running.moved;
  }
  call_hook(bucket, stage, joins);
}

void Step::call_hook(uint32_t bucket, weft_stage stage, bool joins) {
  BucketRun& running = buckets_[bucket];
  // The gate is opened before the call, because the completion may come before the call returns.
  running.generation = s_.hook->gate().open(&running.waiter);
  stage.token = {bucket, stage.index, running.generation};
  running.job->prepare(stage, joins);
  if (run_here(*running.job)) {
    if (!settle(bucket)) pending_.push_back(bucket);
  } else {
    s_.comm->context().stages().post(running.job);
    pending_.push_back(bucket);
  }
}

// Runs the job on this thread in `caller` mode, or if the hook's stages do not use the worker and its turn is
// free.
bool Step::run_here(StageJob& job) {
  if (engine_.mode() == Engine::Mode::kCaller) {
    job.run();
    return true;
  }
  if (s_.worker || !s_.hook->turn().try_take()) return false;
  job.run();
  s_.hook->turn().give();
  s_.comm->context().stages().turn_over();
  return true;
}

// Completes a stage. False if the stage's call has not returned, or its later completion has not come.
bool Step::settle(uint32_t bucket) {
  BucketRun& running = buckets_[bucket];
  const StageJob& job = *running.job;
  if (job.out()) return false;
  Status status = job.status();
  const bool later = job.pends() && !running.asked;  // a sparse gradient's hook stage may not complete later
  if (later && !running.waiter.done()) return false;
  if (later) {
    status = running.waiter.result();
  } else {
    s_.hook->gate().close(running.generation);
  }
  if (status.ok() && !s_.scratch->intact(bucket)) {
    status = Status::error(
        Code::kHook, cat("hook '", s_.hook->name(), "' wrote past the end of its scratch of ",
                         s_.schedule.buckets[bucket].scratch_bytes, " bytes (weft_hook_plan.scratch_bytes)"));
  }
  running.count = job.stage().dynamic_count;
  if (!status.ok()) {
    fail_stage(s_, step_, buckets_[bucket], bucket, status);
  } else if (running.asked) {
    asked_about_sparse(bucket);
  } else {
    stage_done(bucket, job.began_ns(), later ? 0 : job.ended_ns());
  }
  return true;
}

// Handles one stage that completed since the last poll.
bool Step::resume() {
  for (size_t i = 0; i < pending_.size(); i++) {
    const uint32_t b = pending_[i];
    const bool adds = s_.plan.buckets[b].sparse && !buckets_[b].asked;
    if (adds && !work_on_sparse(b)) return true;
    if (!adds && !settle(b)) continue;
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    if (adds) sparse_stage_done(b);
    return true;
  }
  return false;
}

// Ends the stages after a failure. A stage that has not begun is cancelled. A running one has kReturnNs to
// return, and is then set aside: it keeps the objects that it uses until it returns.
bool Step::stages_ended() {
  if (given_up_ns_ == 0) given_up_ns_ = clock_.now_ns();
  StageWorker& worker = s_.comm->context().stages();
  bool out = false;
  for (const uint32_t b : pending_) {
    StageJob& job = *buckets_[b].job;
    if (job.out()) worker.cancel(job);
    out |= job.out();
  }
  const uint64_t now = out ? clock_.now_ns() : 0;
  if (out && now < applied_deadline_ns_ && now - given_up_ns_ < kReturnNs) return false;
  if (out) left_text_ = where();
  for (const uint32_t b : pending_) {
    if (s_.plan.buckets[b].sparse && !buckets_[b].asked) continue;
    const BucketRun& running = buckets_[b];
    s_.hook->gate().close(running.generation);
    if (!running.waiter.done()) running.job->leave();
    if (running.job->out()) worker.set_aside(*running.job);
  }
  pending_.clear();
  return true;
}

// ended_ns: 0 means now.
void Step::stage_done(uint32_t bucket, uint64_t began_ns, uint64_t ended_ns) {
  BucketRun& running = buckets_[bucket];
  if (began_ns != 0) {
    trace(TraceKind::kStage, bucket, running.stages, began_ns, ended_ns != 0 ? ended_ns : clock_.now_ns());
  }
  running.stages++;
  if (running.stages == s_.schedule.buckets[bucket].collectives + 1) results_.add(bucket);
}

}  // namespace weft
