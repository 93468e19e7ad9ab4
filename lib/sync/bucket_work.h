// Work on a bucket between its last gradient and its first collective. Each kind lies in a feature's folder
// and works on one bucket at a time. When a plan is made, every bucket gets the list of the works that it
// needs (sync/features.h), and Step does one after the other.
//
// Threads: under the engine's progress lock, except for bring.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "sync/step_context.h"

namespace weft {

enum class Progress : uint8_t {
  kMore,     // a piece is done, and there are others
  kWaiting,  // nothing to do now: ask again, because no notification comes
  kDone,
};

class BucketWork {
 public:
  BucketWork() = default;
  virtual ~BucketWork() = default;
  BucketWork(const BucketWork&) = delete;
  BucketWork& operator=(const BucketWork&) = delete;

  // Called before the first piece.
  virtual void begin(const StepContext& /*step*/, uint32_t /*bucket*/) {}
  // Does one bounded piece. Fails the communicator if that is not possible, and returns kWaiting.
  virtual Progress piece(StepContext& step, uint32_t bucket) = 0;
  // Returns true once nothing that piece() began still accesses the bucket. Called after a failure.
  virtual bool quiet() { return true; }
  // Describes what the gradients of the bucket wait for, after "gradients of bucket 1 (...)".
  virtual const char* awaited() const { return " are being prepared"; }
  // After a failure, moves the contributions of a bucket that was not launched into it, if they are
  // elsewhere. False if that takes longer than the deadline. The program's thread, once the step is over.
  virtual bool bring(const StepContext& /*step*/, uint32_t /*bucket*/, Deadline /*deadline*/) { return true; }
};

}  // namespace weft
