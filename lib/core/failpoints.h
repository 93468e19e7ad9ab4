// Places in the life of a communicator where a test makes this rank stop, die, be late or fail: what failures
// do to the others is tested there, exactly, instead of by luck. Nothing is set unless WEFT_FAILPOINTS says
// so (lib/base/config.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace weft {

enum class FailPlace : uint8_t {
  kForming,    // connected with all ranks, before a backend is chosen; also of a split. number: how often it
               // was shrunk
  kOperation,  // before an operation of any lane starts; number: its slot
  kStage,      // before a hook's stage, also one that copies do in its place; number: the bucket, stage: the
               // stage
  kLeaving,    // before the farewell; cannot fail
  kMemory,  // before memory is taken: 0 by weft_comm_alloc, 1 for a reducer's buckets, 2 for a hook's scratch
  kSystem,  // before the system calls that make a backend's shared memory (0) or open its network (1)
  kWriting,  // shm, before each write into peers' memory, past the fence, or staging; number: the operation's
             // slot, stage: the round; cannot fail
  kHanding,  // shm, past the fence, before a NUMA node's ranks are handed their results; as kWriting
  kMeasuring,  // before each operation that is tried over messages; number: how many were
};

// Immutable. Threads: any thread.
class FailPoints {
 public:
  // "PLACE[@NUMBER[.STAGE]]=ACTION, ..." with the places forming, operation, stage, leaving, memory,
  // system, writing, handing and measuring, and the actions kill, stop (SIGSTOP), delay:MILLISECONDS and
  // fail. Without a number every visit counts. Null for an empty text; kArg quotes what is wrong.
  static Status parse(const std::string& text, std::shared_ptr<const FailPoints>* points);

  // This rank is there: do what is set, if anything. An error for `fail`: kNoMemory at memory, else kSystem.
  Status reach(FailPlace place, uint64_t number, uint64_t stage, Clock& clock) const;

 private:
  enum class Action : uint8_t { kKill, kStop, kDelay, kFail };
  struct Point {
    std::string text;
    FailPlace place = FailPlace::kForming;
    uint64_t number = kAny;
    uint64_t stage = kAny;
    Action action = Action::kFail;
    uint64_t delay_ms = 0;
  };
  static constexpr uint64_t kAny = UINT64_MAX;
  static bool parse_point(const std::string& text, Point* point);

  std::vector<Point> points_;
};

// Null as long as nothing is set.
using FailPointsPtr = std::shared_ptr<const FailPoints>;

}  // namespace weft
