// The values of a step that are known only while it runs. Step owns them and passes them to the features'
// exchanges, works and stages. Threads: `begun` is set by the program's thread before the step
// opens; all else under the engine's progress lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "reducer/step/step_handshake.h"

namespace weft {

// The arguments of begin for a synchronised step.
struct StepStart {
  uint64_t number = 0;
  uint64_t begin_ns = 0;
  HandshakeRecord record;    // this rank's
  uint64_t local_steps = 0;  // since the previous synchronised step
  uint64_t digest = 0;       // of this rank's values, in a step that compares them
  bool fixed = false;        // WEFT_BEGIN_FIXED
  bool noting = false;       // the order of readiness is recorded
  bool zeros = false;        // the places of absent parameters are not cleared yet
  // The step has only its own gradients, from all ranks, and its divisor is known when it begins. Copies may
  // then narrow (HookedBucket::copies_narrow).
  bool fresh = false;
};

struct StepContext {
  struct Bucket {
    uint32_t absent = 0;    // parameters
    bool skipped = false;   // it is not communicated
    bool retained = false;  // its contributions are in the retained copy
  };
  StepStart begun;
  uint32_t stamp = 0;
  StepHandshake handshake;
  bool opened = false;              // every rank has begun the step, and it is to be reduced
  bool compared = false;            // the ranks' values are equal, or are not compared in this step
  bool mapped = false;              // this rank knows which parameters are absent everywhere
  bool fixed = false;               // every rank declared its absent parameters fixed (WEFT_BEGIN_FIXED)
  uint32_t launched = 0;            // buckets
  uint32_t reviewed = 0;            // buckets
  double factor = 1;                // of results on their way to the gradients
  bool discarded = false;           // results do not go to the gradients
  std::atomic<bool> sealed{false};  // no gradient is written any more; set by any thread
  std::vector<Bucket> buckets;

  // Begins the step of this stamp: until an exchange finds otherwise, the ranks are even.
  void start(uint32_t with_stamp, int size) {
    stamp = with_stamp;
    handshake = even_handshake(size, begun.record.micro_batches);
    opened = compared = true;
    mapped = false;
    fixed = begun.fixed;
    launched = reviewed = 0;
    factor = 1;
    discarded = false;
    buckets.assign(buckets.size(), {});
  }
};

}  // namespace weft
