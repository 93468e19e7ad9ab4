// Stages of a hook that is not called, because they do nothing, or because the copies of a bucket do their
// work. What remains is a place for failpoints. Threads: those of BucketStages.
#pragma once

#include "comm/context.h"
#include "reducer/state.h"
#include "reducer/step/bucket_run.h"
#include "reducer/step/bucket_stages.h"
#include "reducer/step/bucket_trace.h"

namespace weft {

class PassedStages final : public BucketStages {
 public:
  // shown: a trace shows the stages, without duration.
  PassedStages(const ReducerState& state, bool shown) : s_(state), shown_(shown) {}

  const char* name() const override { return "none"; }
  Progress begin(StepContext& step, BucketRun& run, bool /*joins*/) override {
    if (const Status status = s_.comm->reach(FailPlace::kStage, run.bucket, run.stages); !status.ok()) {
      fail_stage(s_, step, run, run.stages, status);
      return Progress::kOver;
    }
    if (shown_ && s_.comm->context().trace() != nullptr) {
      const uint64_t now_ns = s_.comm->context().clock().now_ns();
      trace_bucket(s_, step, TraceKind::kStage, run.bucket, run.stages, now_ns, now_ns);
    }
    return Progress::kDone;
  }

 private:
  const ReducerState& s_;
  const bool shown_;
};

}  // namespace weft
