// Stages of a hook whose work the copies of a bucket do. Threads: those of BucketStages.
#pragma once

#include "core/context.h"
#include "reducer/state.h"
#include "reducer/step/bucket_run.h"
#include "reducer/step/bucket_stages.h"

namespace weft {

class PassedStages final : public BucketStages {
 public:
  explicit PassedStages(const ReducerState& state) : s_(state) {}

  Progress begin(StepContext& step, BucketRun& run, bool /*joins*/) override {
    if (const Status status = s_.comm->reach(FailPlace::kStage, run.bucket, run.stages); !status.ok()) {
      fail_stage(s_, step, run, run.stages, status);
      return Progress::kOver;
    }
    return Progress::kDone;
  }

 private:
  const ReducerState& s_;
};

}  // namespace weft
