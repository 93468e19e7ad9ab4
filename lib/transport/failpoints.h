// Fault injection: places in the life of a communicator where a test makes this rank stop, die, be late or
// fail, and counters that begin late. Tests so reproduce the effect of failures on other ranks exactly, and
// the end of a counter's range without the years that it takes to count there. Nothing of this is active
// unless WEFT_FAILPOINTS is set (lib/environment/variables.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
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

// The counters that can begin late. docs/dev/reliability.md says how wide they are and how each one ends.
enum class FailCounter : uint8_t {
  kSlots,     // the operations of every lane, and of the lanes below it
  kPackets,   // in shm, the packets from one rank to another
  kMessages,  // calls of tagged messages and their offers, and messages of framed transports
  kSteps,     // a reducer's synchronised steps, as the program counts them
  kStamps,    // all steps of a reducer, and its windows of local steps: 32 bits
  kStages,    // stages of a hook
  kLanes,     // collective lanes after the first, where their number is not limited: 32 bits
  kSplits,    // splits of a communicator: 32 bits
  kNotes,     // confirmed messages between the owners of a lane: 32 bits
  kGroups,    // communicators that a context has created over a store
  kTurns,     // operations of NCCL on one communicator
};
inline constexpr size_t kCounters = 11;

// Immutable. Threads: any thread.
class FailPoints {
 public:
  // Parses "PLACE[@NUMBER[.STAGE]]=ACTION, ..., COUNTER=begin:NUMBER, ...". Places: forming, operation,
  // stage, leaving, memory, system, writing and measuring. Actions: kill, stop (SIGSTOP), delay:MILLISECONDS
  // and fail. Without a number every visit matches. Counters: those of FailCounter, as in
  // "operations=begin:4294967290"; equal on all ranks, except where a test wants the ranks to differ. *points
  // is null for an empty text; kArg quotes the invalid part.
  static Status parse(const std::string& text, std::shared_ptr<const FailPoints>* points);

  // Returns the number with which a counter begins; 0 unless it is set.
  uint64_t first(FailCounter counter) const { return first_[static_cast<size_t>(counter)]; }

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
  bool parse_counter(std::string_view text);

  std::vector<Point> points_;
  std::array<uint64_t, kCounters> first_{};
};

// Null if no fail point is set.
using FailPointsPtr = std::shared_ptr<const FailPoints>;

// Returns the number with which a counter begins.
inline uint64_t first_of(const FailPointsPtr& points, FailCounter counter) {
  return points == nullptr ? 0 : points->first(counter);
}
inline uint32_t first_of_32(const FailPointsPtr& points, FailCounter counter) {
  return static_cast<uint32_t>(first_of(points, counter));
}

}  // namespace weft
