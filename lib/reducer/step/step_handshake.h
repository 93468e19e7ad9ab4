// The step handshake for ranks that may be uneven. Each rank publishes whether it has data, its weight, and
// whether it has joined. From these records every rank draws the same conclusion. Used by Step, on the thread
// that polls the engine. Threads: values; one thread at a time.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace weft {

// A rank's record. Sent as raw bytes.
struct HandshakeRecord {
  static constexpr uint32_t kData = 1;    // it has gradients, of this step or accumulated
  static constexpr uint32_t kJoined = 2;  // it has no more data
  static constexpr uint32_t kReplan = 4;  // not a step: the rank wants a re-plan
  static constexpr uint32_t kGather = 8;  // not a step: parameters are gathered
  static constexpr uint32_t kFixed = 16;  // its absent parameters are absent on all ranks (WEFT_BEGIN_FIXED)
  static constexpr uint32_t kZeros = 32;  // no gradient is of this step: it has joined, or began without data
  uint64_t step = 0;
  double weight = 1;
  uint32_t micro_batches = 1;
  uint32_t flags = kData;

  bool has(uint32_t flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(HandshakeRecord) == 24);

enum class StepOutcome : uint8_t {
  kReduce,     // a normal step
  kOver,       // nothing is reduced: all ranks have joined
  kReplan,     // nothing is reduced: the ranks re-plan
  kGather,     // nothing is reduced: the ranks gather parameters (reducer/feature/sharded/gather.h)
  kDiffers,    // nothing is reduced: the values of the ranks differ
               // (reducer/feature/pre_step/pre_step_values.h)
  kExhausted,  // nothing is reduced: a rank has joined, and the others are to stop
};

struct HandshakeRules {
  int32_t divide_by = WEFT_DIVIDE_WORLD;
  bool stop_when_exhausted = false;
};

// The conclusion for one rank.
struct StepHandshake {
  StepOutcome outcome = StepOutcome::kReduce;
  double divisor = 1;       // of the sums
  double factor = 1;        // of this rank's contribution, before it is added
  bool fixed = false;       // every rank knows which parameters are absent everywhere
  uint32_t active = 0;      // number of ranks with data
  int first_active = -1;    // the lowest of them; -1: none
  int last_active = -1;     // the highest of them; -1: none
  std::vector<int> joined;  // the ranks that have joined
};

// Returns the handshake's outcome for a communicator whose ranks are never uneven.
StepHandshake even_handshake(int size, uint32_t micro_batches);

// records: one per rank, from other processes. kMismatch, naming a rank, for an invalid record. Also for
// ranks that disagree on the step, on micro_batches or on WEFT_BEGIN_FIXED.
Status decide_handshake(const std::vector<HandshakeRecord>& records, int rank, const HandshakeRules& rules,
                        StepHandshake* handshake);

}  // namespace weft
