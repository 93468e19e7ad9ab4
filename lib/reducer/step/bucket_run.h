// The progress of one bucket in a step. Threads: under the engine's progress lock, except for done and
// done_ns, which any thread may read.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "base/text.h"
#include "hook/stage_gate.h"
#include "reducer/step/stage_job.h"
#include "reducer/step/step_context.h"

namespace weft {

struct BucketRun {
  BucketRun(uint32_t its_bucket, Engine& engine, std::shared_ptr<StageJob> its_job)
      : bucket(its_bucket), waiter(engine), job(std::move(its_job)) {}

  const uint32_t bucket;
  StageWaiter waiter;
  const std::shared_ptr<StageJob> job;
  std::atomic<uint32_t> done{0};  // the stamp of the last step in which its result arrived
  std::atomic<uint64_t> done_ns{0};
  uint64_t launch_ns = 0;
  uint64_t transfer_ns = 0;
  uint64_t sent_bytes = 0;
  uint64_t least_bytes = 0;
  uint64_t generation = 0;        // of the pending stage
  uint32_t stages = 0;            // completed
  uint64_t number = 0;            // the step's number in the descriptors of its hook's collectives
  uint64_t count = 0;             // dynamic_count; 0 skips the following optional collective
  uint32_t counted = UINT32_MAX;  // the dynamic collective that the job's counts belong to
  uint64_t moved = 0;             // the largest of those counts

  void start() {
    done_ns.store(0, std::memory_order_relaxed);
    launch_ns = transfer_ns = sent_bytes = least_bytes = 0;
    stages = 0;
    counted = UINT32_MAX;
  }
};

using BucketRuns = std::deque<BucketRun>;  // not movable

// Fails the communicator because of an error of a stage of the bucket.
inline void fail_stage(const ReducerState& s, const StepContext& step, const BucketRun& run, uint32_t stage,
                       const Status& status) {
  s.comm->fail(status
                   .with_prefix(cat("rank ", s.comm->rank(), ", step ", step.begun.number, ", ",
                                    s.plan.text(s.manifest, run.bucket), ", stage ", stage, ": "))
                   .with_ranks({s.comm->rank()})
                   .with_step(step.begun.number));
}

}  // namespace weft
