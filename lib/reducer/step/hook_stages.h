// Stages that call the hook, in place or on the context's worker. They may complete later. One object serves
// all buckets. Threads: those of BucketStages.
#pragma once

#include <optional>
#include <string>

#include "reducer/features.h"
#include "reducer/state.h"
#include "reducer/step/bucket_run.h"
#include "reducer/step/bucket_stages.h"

namespace weft {

class HookStages : public BucketStages {
 public:
  explicit HookStages(ReducerState& state) : s_(state) {}

  const char* name() const override { return "hook"; }
  Progress begin(StepContext& step, BucketRun& run, bool joins) override;
  Progress piece(StepContext& step, BucketRun& run) override;
  std::string awaited(const BucketRun& run) const override { return awaited_call(run, run.stages); }
  bool quiet(BucketRun& run) override;
  void leave(BucketRun& run) override;

 protected:
  // Calls a stage of the hook.
  void call(BucketRun& run, weft_stage stage, bool joins);
  // Returns the outcome of the call; empty while the call has not returned, or its completion has not come.
  // later: the stage may complete after its call.
  std::optional<Status> settle(BucketRun& run, bool later);
  // stage: the number that the hook knows.
  std::string awaited_call(const BucketRun& run, uint32_t stage) const;

  ReducerState& s_;

 private:
  bool run_here(StageJob& job);
};

// Gives every bucket the stages of its hook. Other features replace them.
extern const StepFeature kHooked;

}  // namespace weft
