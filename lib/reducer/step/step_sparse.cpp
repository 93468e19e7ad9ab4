// Buckets of sparse gradients in a step: SparseGradient does the work of the stages. A hook that receives
// entries has a stage of its own before the first of these and, if the entries are communicated, one after
// the last.
#include <algorithm>

#include "base/text.h"
#include "core/context.h"
#include "reducer/step/step.h"

namespace weft {

SparseGradient& Step::sparse(uint32_t bucket) const {
  return *s_.sparse->of(s_.plan.buckets[bucket].params.front());
}

void Step::run_sparse_stage(uint32_t bucket, bool joins) {
  const HookedBucket& hooked = s_.schedule.buckets[bucket];
  if (buckets_[bucket].stages == 0) {
    SparseGradient::Terms terms;
    terms.rank = s_.comm->rank();
    terms.size = s_.comm->size();
    terms.factor = step_.handshake.factor;
    terms.divisor = hooked.sums ? 1 : step_.handshake.divisor;
    terms.absent = s_.presence->absent(s_.plan.buckets[bucket].params.front(), step_.stamp);
    terms.sends = hooked.collectives > 0;
    sparse(bucket).begin(terms);
    if (hooked.asks) return ask_about_sparse(bucket, 0, joins);
  }
  enter_sparse_stage(bucket);
}

void Step::ask_about_sparse(uint32_t bucket, uint32_t stage, bool joins) {
  buckets_[bucket].asked = true;
  weft_stage asked{};
  asked.struct_size = sizeof asked;
  asked.index = stage;
  call_hook(bucket, asked, joins);
}

// Continues after the hook's stage has returned without an error.
void Step::asked_about_sparse(uint32_t bucket) {
  BucketRun& running = buckets_[bucket];
  const StageJob& job = *running.job;
  Status taken;
  if (job.pends()) {
    taken = Status::error(
        Code::kHook, cat("hook '", s_.hook->name(),
                         "': a stage of a sparse gradient cannot complete later (weft_stage.pending is 1): "
                         "let the stage return only when its work is complete"));
  }
  const bool before = running.stages == 0;
  if (taken.ok() && before) taken = sparse(bucket).take_shown();
  if (!taken.ok()) return fail_stage(s_, step_, buckets_[bucket], bucket, taken);
  if (job.began_ns() != 0)
    trace(TraceKind::kStage, bucket, buckets_[bucket].stage(), job.began_ns(), job.ended_ns());
  running.asked = false;
  if (before) return enter_sparse_stage(bucket);
  stage_done(bucket, 0, 0);
}

// Begins a stage. Its work is done piece by piece, as that of a pending stage.
void Step::enter_sparse_stage(uint32_t bucket) {
  BucketRun& running = buckets_[bucket];
  SparseGradient& gradient = sparse(bucket);
  running.stage_began_ns = s_.comm->context().trace() != nullptr ? clock_.now_ns() : 0;
  if (const Status entered = gradient.enter(running.stages); !entered.ok()) {
    return sparse_failed(bucket, entered);
  }
  pending_.push_back(bucket);
}

// Does a piece of the stage's work. True when the stage is done.
bool Step::work_on_sparse(uint32_t bucket) {
  BucketRun& running = buckets_[bucket];
  SparseGradient& gradient = sparse(bucket);
  if (!gradient.work(s_.comm->context().host())) return false;
  const bool more = running.stages < s_.schedule.buckets[bucket].collectives;
  running.count = more && gradient.takes_place(running.stages) ? 1 : 0;
  return true;
}

void Step::sparse_stage_done(uint32_t bucket) {
  BucketRun& running = buckets_[bucket];
  const HookedBucket& hooked = s_.schedule.buckets[bucket];
  if (!hooked.asks || running.stages == 0 || running.stages < hooked.collectives) {
    return stage_done(bucket, running.stage_began_ns, 0);
  }
  sparse(bucket).show_result();
  ask_about_sparse(bucket, 1, false);
}

void Step::sparse_failed(uint32_t bucket, const Status& status) {
  const bool others = !status.info().ranks.empty();
  s_.comm->fail(status
                    .with_prefix(cat("rank ", s_.comm->rank(), ", step ", step_.begun.number, ", ",
                                     s_.plan.text(s_.manifest, bucket), ": "))
                    .with_ranks(others ? status.info().ranks : std::vector<int>{s_.comm->rank()})
                    .with_step(step_.begun.number));
}

}  // namespace weft
