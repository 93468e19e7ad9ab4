// The stages of a bucket run before, between and after its collectives: stage k before collective k, and one
// more after all. Every bucket gets its stages when the plan is made (reducer/features.h). Step calls them.
//
// Threads: under the engine's progress lock, except where noted.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "reducer/bucket/bucket_work.h"
#include "reducer/step/step_context.h"
#include "transport/collectives.h"

namespace weft {

struct BucketRun;

class BucketStages {
 public:
  BucketStages() = default;
  virtual ~BucketStages() = default;
  BucketStages(const BucketStages&) = delete;
  BucketStages& operator=(const BucketStages&) = delete;

  virtual const char* name() const = 0;  // for the report
  // Begins the bucket's next stage, number run.stages. joins: the rank has no data in this step. Returns what
  // piece returns.
  virtual Progress begin(StepContext& step, BucketRun& run, bool joins) = 0;
  // Continues a stage that is not complete. kOver: it has failed, and with it the communicator.
  virtual Progress piece(StepContext& /*step*/, BucketRun& /*run*/) { return Progress::kDone; }
  // Called before a stage of the hook, on the thread that runs it and with the hook's turn.
  virtual Status before_call(uint32_t /*stage*/) { return {}; }
  // Sets the arguments of a collective that only the stages know (Slot::Kind::kStaged).
  virtual void fill(uint32_t /*collective*/, CollectiveArgs* /*args*/) {}

  // ---- of a stage that is not complete
  virtual std::string awaited(const BucketRun& /*run*/) const { return {}; }
  // Returns true once no thread runs the stage. Called after a failure: cancels a stage that has not begun.
  virtual bool quiet(BucketRun& /*run*/) { return true; }
  // Gives the stage up after a failure. A thread that still runs it keeps the objects that it uses.
  virtual void leave(BucketRun& /*run*/) {}
};

}  // namespace weft
