// How a step opens where ranks may be uneven: each tells all others whether it has data, its weight, and
// whether it has joined; from these records every rank draws the same conclusion. Used by Step, on whichever
// thread drives the engine. Threads: values; one thread at a time.
#pragma once

#include <weft/weft.h>

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace weft {

// What a rank says; travels as it is.
struct OpeningRecord {
  static constexpr uint32_t kData = 1;    // it has gradients, of this step or accumulated ones
  static constexpr uint32_t kJoined = 2;  // it has no more data
  static constexpr uint32_t kReplan = 4;  // no step: it wants another plan
  static constexpr uint32_t kGather = 8;  // no step: parameters are gathered
  static constexpr uint32_t kFixed =
      16;  // what is absent from the step is so on all ranks (WEFT_BEGIN_FIXED)
  static constexpr uint32_t kZeros = 32;  // no gradient is of this step: it has joined, or began without data
  uint64_t step = 0;
  double weight = 1;
  uint32_t micro_batches = 1;
  uint32_t flags = kData;

  bool has(uint32_t flag) const { return (flags & flag) != 0; }
};
static_assert(sizeof(OpeningRecord) == 24);

enum class Turn : uint8_t {
  kReduce,     // as any step
  kOver,       // all ranks have joined: nothing is reduced
  kReplan,     // nothing is reduced: the ranks make a plan
  kGather,     // nothing is reduced: the ranks gather parameters (sync/gather.h)
  kDiffers,    // the values of the ranks differ (sync/prelude.h): nothing is reduced
  kExhausted,  // a rank has joined, and the others are to stop: nothing is reduced
};

struct OpeningRules {
  int32_t divide_by = WEFT_DIVIDE_WORLD;
  bool stop_when_exhausted = false;
};

// What follows for one rank.
struct Opening {
  Turn turn = Turn::kReduce;
  double divisor = 1;       // of the sums
  double factor = 1;        // of this rank's contribution, before it is added
  bool fixed = false;       // every rank knows what is absent everywhere
  uint32_t active = 0;      // ranks with data
  int first_active = -1;    // the lowest of them
  int last_active = -1;     // the highest of them
  std::vector<int> joined;  // ranks
};

// Of a communicator whose ranks are never uneven.
Opening even_opening(int size, uint32_t micro_batches);

// records: one a rank, from other processes: kMismatch naming a rank for what cannot be, or for ranks that
// disagree on the step, on micro_batches or on whether absent parameters are fixed.
Status judge_opening(const std::vector<OpeningRecord>& records, int rank, const OpeningRules& rules,
                     Opening* opening);

}  // namespace weft
