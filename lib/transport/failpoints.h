// Fault injection: places in the life of a communicator where a test makes this rank stop, die, be late or
// fail. Tests so reproduce the effect of failures on other ranks exactly. No fail point is active unless
// WEFT_FAILPOINTS is set (lib/base/config.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace weft {

enum class FailPlace : uint8_t {
  // Connected with all ranks, before a backend is chosen; also in a split. number: the generation.
  kGroupSetup,
  kOperation,  // before an operation of any lane starts; number: its slot
  kStage,      // before a hook's stage, or the copies that replace it; number: the bucket, stage: the stage
  kLeaving,    // before the goodbye; cannot fail
  // Before memory is allocated. number: 0 in weft_comm_alloc, 1 for a reducer's buckets, 2 for a hook's
  // scratch.
  kMemory,
  kSystem,  // before the system calls that create a backend's shared memory (0) or open its network (1)
  // In shm, before each write into peers' memory, after the fence, or into staging; number: the operation's
  // slot, stage: the round; cannot fail.
  kWriting,
  kMeasuring,  // before each autotuning operation over messages; number: how many came before
};

// Immutable. Threads: any thread.
class FailPoints {
 public:
  // Parses "PLACE[@NUMBER[.STAGE]]=ACTION, ...". Places: forming, operation, stage, leaving, memory, system,
  // writing and measuring. Actions: kill, stop (SIGSTOP), delay:MILLISECONDS and fail. Without a number every
  // visit matches. *points is null for an empty text; kArg quotes the invalid part.
  static Status parse(const std::string& text, std::shared_ptr<const FailPoints>* points);

  // Called when this rank reaches a place: performs the actions that are set. `fail` returns kNoMemory at
  // memory, else kSystem.
  Status reach(FailPlace place, uint64_t number, uint64_t stage, Clock& clock) const;

 private:
  enum class Action : uint8_t { kKill, kStop, kDelay, kFail };
  struct Point {
    std::string text;
    FailPlace place = FailPlace::kGroupSetup;
    uint64_t number = kAny;
    uint64_t stage = kAny;
    Action action = Action::kFail;
    uint64_t delay_ms = 0;
  };
  static constexpr uint64_t kAny = UINT64_MAX;
  static bool parse_point(const std::string& text, Point* point);

  std::vector<Point> points_;
};

// Null if no fail point is set.
using FailPointsPtr = std::shared_ptr<const FailPoints>;

}  // namespace weft
