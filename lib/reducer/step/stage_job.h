// A stage of the hook as a job. HookStages runs it in place, or the context's worker runs it concurrently.
// There is one per bucket, reused for every stage.
//
// Threads: HookStages calls prepare and reads results under the progress lock, while the job is not out. Any
// thread that runs stages calls run. The job shares ownership of what the stage uses, so nothing is freed
// under a stage that was given up.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "comm/context.h"
#include "hook/hook_guard.h"
#include "hook/stage_worker.h"
#include "reducer/state.h"

namespace weft {

class StageJob final : public StageWork {
 public:
  StageJob(std::shared_ptr<ReducerState> state, uint32_t bucket, size_t counts)
      : counts(counts), state_(std::move(state)), bucket_(bucket) {
    owner_ = state_.get();
  }
  // Runs on the thread of a stage that returned after it was given up, or on the thread that destroys the
  // step. If the stage may still write, its memory is never freed.
  ~StageJob() override {
    if (!unfinished()) return;
    state_->buckets->abandon();
    state_->scratch->abandon();
  }

  // joins: the rank has no data in this step, so the hook's join is called first.
  void prepare(const weft_stage& stage, bool joins) {
    stage_ = stage;
    joins_ = joins;
    place_ = (uint64_t{bucket_} + stage.index) << 8 | stage.index;  // the schedule's wavefront
    error_memory_.reset();
    began_ns_ = ended_ns_ = 0;
  }
  // Runs the stage. Needs the hook's turn, or the progress lock in `caller` mode.
  void run() override {
    ReducerState& s = *state_;
    Context& context = s.comm->context();
    const bool traced = context.trace() != nullptr;
    if (traced) began_ns_ = context.clock().now_ns();
    const weft_bucket& view = s.views->bucket(bucket_);
    status_ = guard_hook(*s.hook, "a stage", [&]() -> Status {
      WEFT_TRY(s.comm->reach(FailPlace::kStage, bucket_, stage_.index));
      WEFT_TRY(s.stages[bucket_]->before_call(stage_.index));
      if (joins_) WEFT_TRY(s.hook->join(view));
      return s.hook->stage(view, &stage_);
    });
    step_ = s.hook->step_of(view);
    if (stage_.index == s.schedule.buckets[bucket_].collectives) error_memory_ = s.hook->error_memory(view);
    if (traced) ended_ns_ = context.clock().now_ns();
  }
  Hook& hook() override { return *state_->hook; }
  Engine& engine() override { return state_->comm->context().engine(); }

  // True if the stage completes later, by its token.
  bool pends() const { return status_.ok() && stage_.pending != 0; }
  // Marks a running stage as given up: its completion would not be noticed.
  void leave() { left_.store(true); }
  // True if the stage was given up and has returned pending since: its thread may write into the bucket and
  // the scratch at any time. Any thread.
  bool unfinished() const { return left_.load() && !out() && pends(); }

  const Status& status() const { return status_; }
  const weft_stage& stage() const { return stage_; }
  uint64_t step() const { return step_; }  // Hook::step_of
  // Returns the result of Hook::error_memory after the bucket's last stage.
  const std::optional<ErrorMemory>& error_memory() const { return error_memory_; }
  uint64_t began_ns() const { return began_ns_; }  // set while a trace runs
  uint64_t ended_ns() const { return ended_ns_; }
  uint64_t memory_bytes() const { return sizeof *this + counts.capacity() * sizeof(uint64_t); }

  // The ranks' counts for the dynamic collective before the stage. From other processes until judge_counts
  // has checked them.
  std::vector<uint64_t> counts;

 private:
  const std::shared_ptr<ReducerState> state_;
  const uint32_t bucket_;
  weft_stage stage_{};
  bool joins_ = false;
  Status status_;
  uint64_t step_ = 0;
  std::optional<ErrorMemory> error_memory_;
  std::atomic<bool> left_{false};
  uint64_t began_ns_ = 0;
  uint64_t ended_ns_ = 0;
};

}  // namespace weft
