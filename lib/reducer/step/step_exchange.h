// A collective of a step that belongs to no bucket, and what its feature does around it. Each lies in a
// feature's folder. Slots of the schedule point to it, and Step calls it.
//
// Threads: prepare by the program's thread, before the step opens; all else under the engine's progress lock.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "reducer/step/step_context.h"
#include "transport/collectives.h"

namespace weft {

class StepExchange {
 public:
  StepExchange() = default;
  virtual ~StepExchange() = default;
  StepExchange(const StepExchange&) = delete;
  StepExchange& operator=(const StepExchange&) = delete;

  virtual const char* name() const = 0;  // for the report
  virtual void prepare() {}
  // Called when the step starts, with the conclusions of a step in which no exchange finds otherwise.
  virtual void start(StepContext& /*step*/) {}
  // Returns true once the collective may be submitted.
  virtual bool ready(const StepContext& step) const = 0;
  // Returns true if the collective does not take place in this step. Equal on all ranks.
  virtual bool left_out(const StepContext& /*step*/) const { return false; }
  // Sets the arguments that the schedule does not know: the memory, and the root.
  virtual void fill(StepContext& step, CollectiveArgs* args) = 0;
  // Evaluates what the ranks have sent. An error fails the step on all ranks, which draw the same conclusion.
  virtual Status completed(StepContext& /*step*/) { return {}; }
  // Describes what a step waits for whose exchange is submitted: "not every rank has begun the step".
  virtual const char* awaited() const = 0;
  virtual uint64_t memory_bytes() const = 0;
};

}  // namespace weft
