// Work on a bucket before its first collective or after its last. Each kind works on one bucket at a time.
// When a plan is made, every bucket gets lists of the works that it needs (reducer/features.h), and Step does
// one after the other.
//
// Threads: under the engine's progress lock, except for bring.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "reducer/step/step_context.h"

namespace weft {

enum class Progress : uint8_t {
  kMore,     // a piece is done, and there are others
  kWaiting,  // nothing to do now: ask again, because no notification comes
  kDone,
  kOver,  // done, and the works that follow it in the list are not needed
};

class BucketWork {
 public:
  BucketWork() = default;
  virtual ~BucketWork() = default;
  BucketWork(const BucketWork&) = delete;
  BucketWork& operator=(const BucketWork&) = delete;

  virtual const char* name() const = 0;  // for the report
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
  virtual uint64_t memory_bytes() const { return 0; }  // on the heap, besides the object
};

// Decides about the results of a step once all of them have been reviewed, before they go to the gradients.
// Sets factor and discarded. Threads: under the engine's progress lock.
class ResultGate {
 public:
  virtual ~ResultGate() = default;
  // Returns kDone once it has decided. Fails the communicator if that is not possible, and returns kMore.
  virtual Progress decide(StepContext& step) = 0;
  virtual const char* awaited() const = 0;  // what the step waits for
};

// The works of a step's buckets, in the order in which they are done.
struct BucketWorks {
  using List = std::vector<std::vector<BucketWork*>>;  // by bucket
  std::vector<std::unique_ptr<BucketWork>> all;
  List prepare;                      // before the first stage
  List review;                       // with a gate: after the last stage
  std::unique_ptr<ResultGate> gate;  // null: results go to the gradients as soon as they are here
  List give_back;                    // the result goes to the gradients

  // Makes a work, for lists of buckets.
  template <class Work, class... Args>
  BucketWork* make(Args&&... args) {
    return all.emplace_back(std::make_unique<Work>(std::forward<Args>(args)...)).get();
  }
};

}  // namespace weft
