// The stages of a step's hook: run between its collectives, and perhaps completed later. Called from
// Step::poll.
#include "base/text.h"
#include "core/context.h"
#include "sync/step.h"

namespace weft {

void Step::run_stage(uint32_t bucket) {
  if (s_.plan.buckets[bucket].sparse) return run_sparse_stage(bucket);
  Running& running = running_[bucket];
  weft_stage stage{};
  stage.struct_size = sizeof stage;
  stage.index = running.stages;
  if (running.stages > 0 && running.counted == running.stages - 1) {
    stage.counts = running.counts.data();
    stage.moved_count = running.moved;
  }
  // Opened before the call: the completion may come before the call returns.
  running.generation = s_.hook->gate().open(&running.waiter);
  stage.token = {bucket, stage.index, running.generation};
  running.stage_began_ns = s_.comm->context().trace() != nullptr ? clock_.now_ns() : 0;
  Status status = s_.comm->reach(FailPlace::kStage, bucket, stage.index);
  if (status.ok()) status = s_.hook->stage(s_.views->bucket(bucket), &stage);
  running.count = stage.dynamic_count;
  if (status.ok() && stage.pending != 0) {
    pending_.push_back(bucket);
    return;
  }
  s_.hook->gate().close(running.generation);
  if (status.ok()) {
    stage_done(bucket);
  } else {
    stage_failed(bucket, status);
  }
}

// Stages that completed since the last look.
bool Step::resume() {
  for (size_t i = 0; i < pending_.size(); i++) {
    const uint32_t b = pending_[i];
    const bool sparse = s_.plan.buckets[b].sparse;
    if (sparse && !work_on_sparse(b)) return true;
    if (!sparse && !running_[b].waiter.done()) continue;
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    const Status status = sparse ? Status() : running_[b].waiter.result();
    if (status.ok()) {
      stage_done(b);
    } else {
      stage_failed(b, status);
    }
    return true;
  }
  return false;
}

void Step::stage_done(uint32_t bucket) {
  Running& running = running_[bucket];
  if (running.stage_began_ns != 0) {
    trace(TraceKind::kStage, bucket, running.stages, running.stage_began_ns, clock_.now_ns());
  }
  running.stages++;
  if (running.stages == s_.schedule.buckets[bucket].collectives + 1) results_.push_back(bucket);
}

void Step::stage_failed(uint32_t bucket, const Status& status) {
  s_.comm->fail(
      status
          .with_prefix(cat("rank ", s_.comm->rank(), ", step ", begun_.number, ", ",
                           s_.plan.text(s_.manifest, bucket), ", stage ", running_[bucket].stages, ": "))
          .with_ranks({s_.comm->rank()})
          .with_step(begun_.number));
}

}  // namespace weft
