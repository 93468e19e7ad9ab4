#include "reducer/step/hook_stages.h"

#include "base/text.h"
#include "comm/context.h"
#include "reducer/step/bucket_trace.h"
#include "reducer/step/passed_stages.h"

namespace weft {

Progress HookStages::begin(StepContext& step, BucketRun& run, bool joins) {
  weft_stage stage{};
  stage.struct_size = sizeof stage;
  stage.index = run.stages;
  if (run.stages > 0 && run.counted == run.stages - 1) {
    stage.counts = run.job->counts.data();
    stage.moved_count = run.moved;
  }
  call(run, stage, joins);
  return HookStages::piece(step, run);
}

void HookStages::call(BucketRun& run, weft_stage stage, bool joins) {
  // The gate is opened before the call, because the completion may come before the call returns.
  run.generation = s_.hook->gate().open(&run.waiter);
  stage.token = {run.bucket, stage.index, run.generation};
  run.job->prepare(stage, joins);
  if (!run_here(*run.job)) s_.comm->context().stages().post(run.job);
}

// Runs the job on this thread in `caller` mode, or if the hook's stages do not use the worker and its turn is
// free.
bool HookStages::run_here(StageJob& job) {
  if (s_.comm->context().engine().mode() == Engine::Mode::kCaller) {
    job.run();
    return true;
  }
  if (s_.worker || !s_.hook->turn().try_take()) return false;
  job.run();
  s_.hook->turn().give();
  s_.comm->context().stages().turn_over();
  return true;
}

Progress HookStages::piece(StepContext& step, BucketRun& run) {
  const std::optional<Status> status = settle(run, true);
  if (!status) return Progress::kWaiting;
  const StageJob& job = *run.job;
  if (!status->ok()) {
    fail_stage(s_, step, run, run.stages, *status);
    return Progress::kOver;
  }
  if (job.began_ns() != 0) {
    const uint64_t ended_ns = job.pends() ? s_.comm->context().clock().now_ns() : job.ended_ns();
    trace_bucket(s_, step, TraceKind::kStage, run.bucket, run.stages, job.began_ns(), ended_ns);
  }
  return Progress::kDone;
}

std::optional<Status> HookStages::settle(BucketRun& run, bool later) {
  const StageJob& job = *run.job;
  if (job.out()) return {};
  Status status = job.status();
  if (later && job.pends()) {
    if (!run.waiter.done()) return {};
    status = run.waiter.result();
  } else {
    s_.hook->gate().close(run.generation);
  }
  if (status.ok() && !s_.scratch->intact(run.bucket)) {
    status =
        Status::error(Code::kHook, cat("hook '", s_.hook->name(), "' wrote past the end of its scratch of ",
                                       s_.schedule.buckets[run.bucket].scratch_bytes,
                                       " bytes (weft_hook_plan.scratch_bytes)"));
  }
  run.count = job.stage().dynamic_count;
  run.number = job.step();
  return status;
}

std::string HookStages::awaited_call(const BucketRun& run, uint32_t stage) const {
  const StageJob& job = *run.job;
  return cat("hook '", s_.hook->name(), "' has not completed stage ", stage, " of ",
             s_.plan.text(s_.manifest, run.bucket),
             job.out() && !job.running()
                 ? ", which waits until another stage or call of a hook in this context returns"
                 : "");
}

bool HookStages::quiet(BucketRun& run) {
  if (run.job->out()) s_.comm->context().stages().cancel(*run.job);
  return !run.job->out();
}

void HookStages::leave(BucketRun& run) {
  s_.hook->gate().close(run.generation);
  if (!run.waiter.done()) run.job->leave();
  if (run.job->out()) s_.comm->context().stages().set_aside(*run.job);
}

namespace {

void add_hook_stages(ReducerState* s) {
  std::shared_ptr<BucketStages> stages;
  if (s->hook->plain()) {
    stages = std::make_shared<PassedStages>(*s, true);
  } else {
    stages = std::make_shared<HookStages>(*s);
  }
  s->stages.assign(s->plan.buckets.size(), stages);
}

}  // namespace

const StepFeature kHooked{.stages = add_hook_stages};

}  // namespace weft
