// The plan of one run of `weft bench faults`: the ranks' work, and which fault strikes which rank, where and
// when. It depends only on the seed and the run's number, so these two repeat a run. The parent and every
// rank draw the same plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace faults {

// The ranks' activity when the fault strikes.
enum class Phase : uint8_t {
  kForming,  // weft_comm_create
  kIdle,     // no call at all
  kSmall,    // all_reduce of a few elements, over and over
  kPrivate,  // large ones, in the program's own memory
  kArena,    // large ones, in arena memory
  kReducer,  // gradient steps
  kLeaving,  // weft_comm_destroy
  kShrink,   // a first rank is lost, and a second one while the others shrink
  kTwice,    // a second rank is lost right after the first
};
inline constexpr Phase kPhases[] = {Phase::kForming, Phase::kIdle,   Phase::kSmall,
                                    Phase::kPrivate, Phase::kArena,  Phase::kReducer,
                                    Phase::kLeaving, Phase::kShrink, Phase::kTwice};
const char* name(Phase phase);
// Throws std::invalid_argument.
Phase parse_phase(const std::string& text);

enum class Action : uint8_t {
  kKill,   // SIGKILL
  kExit,   // the program ends without notice to Weft
  kLeave,  // it destroys its communicator while the others continue
  kAbort,  // weft_comm_abort
  kFail,   // an operation or a stage of a built-in hook fails
  kHook,   // a stage of the program's own hook returns an error
  kStop,   // SIGSTOP until the others have noticed; then it is killed, or continues and finds itself excluded
  kDelay,  // a delay too short for a failure verdict: no fault
};
const char* name(Action action);

// The time of a fault, and what makes it.
enum class Trigger : uint8_t {
  kStarted,    // by a signal, after_us after the start of the processes
  kWorking,    // by a signal, after_us after all ranks have begun to work
  kFailed,     // by a signal, after_us after the first rank has noticed the previous fault
  kRecovered,  // by a signal, after_us after the first rank continued with the survivors
  kStopping,   // by a signal, after_us after the ranks were asked to end
  kFailpoint,  // by the library itself, at a fail point (lib/transport/failpoints.h)
  kIteration,  // by the rank itself, in this round of its work
};

struct Fault {
  int victim = 0;
  Action action = Action::kKill;
  Trigger trigger = Trigger::kWorking;
  uint64_t after_us = 0;
  uint64_t iteration = 0;
  uint64_t delay_ms = 0;  // kDelay
  bool wakes = false;     // kStop: it continues
  std::string failpoint;  // "operation@7=kill"

  bool ends_process() const { return action == Action::kKill || action == Action::kExit; }
  // True if the victim is no member of later communicators.
  bool leaves() const { return ends_process() || action == Action::kLeave || action == Action::kStop; }
};

// The choices that the user leaves to the draw.
struct Range {
  std::vector<std::string> backends;
  std::vector<Phase> phases;
  int least_ranks = 2;
  int most_ranks = 8;
};

struct Draw {
  uint64_t seed = 0;
  uint64_t number = 0;
  std::string backend;
  std::string hosts;  // WEFT_HOSTS: the simulated host of each rank; empty: one host
  int ranks = 2;
  Phase phase = Phase::kSmall;
  Phase work = Phase::kSmall;  // kIdle to kReducer: the work until the fault
  int64_t heartbeat_ms = 0;
  bool caller_mode = false;  // WEFT_PROGRESS_CALLER
  bool secret = false;
  bool last_of_two = false;
  bool keep_old = false;  // failed communicators are destroyed at the end, not at once
  bool view_mode = false;
  bool rebind = false;  // one reducer for all communicators; false: a new one for each
  bool retain = false;  // failed steps are retried (WEFT_REDUCER_RETAIN)
  bool commit = false;  // WEFT_FINISH_COMMIT
  uint64_t count = 1;   // elements of an all_reduce or of a gradient
  int params = 1;
  std::vector<Fault> faults;

  // True if the ranks end once they have noticed the fault; otherwise they continue without the victim.
  bool ends_with_fault() const { return phase == Phase::kForming || phase == Phase::kLeaving; }
  const Fault* of(int rank) const;
  std::string text() const;  // one line
};

Draw draw(const Range& range, uint64_t seed, uint64_t number);

// Limits of a run, in milliseconds. A call that exceeds its limit by kSlackMs is a hang.
inline constexpr int64_t kInitMs = 20'000;
inline constexpr int64_t kFormingInitMs = 5'000;  // where a rank may die before it has joined
inline constexpr int64_t kOperationMs = 8'000;
inline constexpr int64_t kShrinkMs = 10'000;
inline constexpr int64_t kDestroyMs = 10'000;
inline constexpr int64_t kSlackMs = 1'500;

}  // namespace faults
