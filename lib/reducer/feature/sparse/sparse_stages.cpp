// The stages of a sparse gradient: SparseGradient does their work. A hook that receives entries has a stage
// of its own before the first of these and, if the entries are communicated, one after the last.
#include "base/text.h"
#include "comm/context.h"
#include "reducer/feature/sparse/sparse.h"
#include "reducer/state.h"
#include "reducer/step/bucket_trace.h"
#include "reducer/step/hook_stages.h"

namespace weft {
namespace {

class SparseStages final : public HookStages {
 public:
  SparseStages(ReducerState& state, uint32_t bucket)
      : HookStages(state),
        param_(state.plan.buckets[bucket].params.front()),
        hooked_(state.schedule.buckets[bucket]),
        gradient_(*state.sparse->of(param_)) {}

  const char* name() const override { return "sum of entries"; }
  Progress begin(StepContext& step, BucketRun& run, bool joins) override;
  Progress piece(StepContext& step, BucketRun& run) override;
  Status before_call(uint32_t stage) override {
    return stage == 0 ? gradient_.show_own(s_.comm->context().host()) : Status();
  }
  void fill(uint32_t collective, CollectiveArgs* args) override {
    gradient_.fill(collective, args);
    args->ordered = s_.has(WEFT_REDUCER_DETERMINISTIC) && is_reduction(args->coll);
  }
  std::string awaited(const BucketRun& run) const override {
    if (asked_) return awaited_call(run, hook_stage(run));
    return cat("the sparse entries of ", s_.plan.text(s_.manifest, run.bucket), " are being summed");
  }
  void leave(BucketRun& run) override {
    if (asked_) HookStages::leave(run);
  }

 private:
  // The hook has two stages at most: before the gradient's first stage, and after the last.
  static uint32_t hook_stage(const BucketRun& run) { return run.stages == 0 ? 0 : 1; }
  Progress ask(StepContext& step, BucketRun& run, bool joins);
  Progress asked(StepContext& step, BucketRun& run);
  Progress enter(StepContext& step, BucketRun& run);
  Status take(const StageJob& job, bool first);

  const uint32_t param_;
  const HookedBucket& hooked_;
  SparseGradient& gradient_;
  bool asked_ = false;     // the stage that is not complete is the hook's
  uint64_t began_ns_ = 0;  // while a trace runs
};

Progress SparseStages::begin(StepContext& step, BucketRun& run, bool joins) {
  asked_ = false;
  if (run.stages == 0) {
    SparseGradient::Terms terms;
    terms.rank = s_.comm->rank();
    terms.size = s_.comm->size();
    terms.factor = step.handshake.factor;
    terms.divisor = hooked_.sums ? 1 : step.handshake.divisor;
    terms.absent = s_.presence->absent(param_, step.stamp);
    terms.sends = hooked_.collectives > 0;
    gradient_.begin(terms);
    if (hooked_.asks) return ask(step, run, joins);
  }
  return enter(step, run);
}

Progress SparseStages::ask(StepContext& step, BucketRun& run, bool joins) {
  asked_ = true;
  weft_stage asked{};
  asked.struct_size = sizeof asked;
  asked.index = hook_stage(run);
  call(run, asked, joins);
  return this->asked(step, run);
}

// Continues once the hook's stage has returned.
Progress SparseStages::asked(StepContext& step, BucketRun& run) {
  std::optional<Status> status = settle(run, false);
  if (!status) return Progress::kWaiting;
  const StageJob& job = *run.job;
  const uint32_t stage = hook_stage(run);
  if (status->ok()) status = take(job, stage == 0);
  if (!status->ok()) {
    fail_stage(s_, step, run, stage, *status);
    return Progress::kOver;
  }
  if (job.began_ns() != 0) {
    trace_bucket(s_, step, TraceKind::kStage, run.bucket, stage, job.began_ns(), job.ended_ns());
  }
  asked_ = false;
  return stage == 0 ? enter(step, run) : Progress::kDone;
}

// Takes the entries that the hook's first stage left.
Status SparseStages::take(const StageJob& job, bool first) {
  if (job.pends()) {
    return Status::error(
        Code::kHook, cat("hook '", s_.hook->name(),
                         "': a stage of a sparse gradient cannot complete later (weft_stage.pending is 1): "
                         "let the stage return only when its work is complete"));
  }
  return first ? gradient_.take_shown() : Status();
}

// Begins a stage of the gradient. Its work is done piece by piece.
Progress SparseStages::enter(StepContext& step, BucketRun& run) {
  Context& context = s_.comm->context();
  began_ns_ = context.trace() != nullptr ? context.clock().now_ns() : 0;
  const Status entered = gradient_.enter(run.stages);
  if (entered.ok()) return Progress::kMore;
  const bool others = !entered.info().ranks.empty();
  s_.comm->fail(entered
                    .with_prefix(cat("rank ", s_.comm->rank(), ", step ", step.begun.number, ", ",
                                     s_.plan.text(s_.manifest, run.bucket), ": "))
                    .with_ranks(others ? entered.info().ranks : std::vector<int>{s_.comm->rank()})
                    .with_step(step.begun.number));
  return Progress::kOver;
}

Progress SparseStages::piece(StepContext& step, BucketRun& run) {
  if (asked_) return asked(step, run);
  if (!gradient_.work(s_.comm->context().host())) return Progress::kMore;
  const bool more = run.stages < hooked_.collectives;
  run.count = more && gradient_.takes_place(run.stages) ? 1 : 0;
  if (hooked_.asks && run.stages > 0 && !more) {
    gradient_.show_result();
    return ask(step, run, false);
  }
  if (began_ns_ != 0) {
    trace_bucket(s_, step, TraceKind::kStage, run.bucket, run.stages, began_ns_,
                 s_.comm->context().clock().now_ns());
  }
  return Progress::kDone;
}

}  // namespace

void add_sparse_stages(ReducerState* s) {
  for (uint32_t b = 0; b < s->stages.size(); b++) {
    if (s->plan.buckets[b].sparse) s->stages[b] = std::make_shared<SparseStages>(*s, b);
  }
}

}  // namespace weft
