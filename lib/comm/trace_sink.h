// The interface to which the library reports timed events. lib/trace implements it; there is none unless a
// trace is running.
#pragma once

#include <cstdint>

namespace weft {

enum class TraceKind : uint8_t {
  kStep,        // a reducer's step, from begin to the end of finish
  kFinish,      // the part of a step in which the program waited for it: its exposed time
  kReady,       // a gradient became ready (instant)
  kLaunch,      // a bucket was launched (instant)
  kStage,       // a hook's stage was computed
  kCollective,  // a collective ran on a lane
  kDone,        // a bucket's result was written to the gradients (instant)
  kMessage,     // a tagged message, from its call to its end
};

struct TraceEvent {
  TraceKind kind = TraceKind::kStep;
  const char* name = "";  // valid during record()
  uint64_t begin_ns = 0;  // on the context's clock
  uint64_t end_ns = 0;    // equal to begin_ns for instants
  uint64_t comm = 0;      // CommOptions::id
  int32_t rank = 0;
  uint32_t lane = 0;
  uint32_t bucket = UINT32_MAX;
  uint32_t stage = UINT32_MAX;
  uint64_t step = UINT64_MAX;        // of a reducer; not set for kReady
  uint64_t index = UINT64_MAX;       // parameter for kReady, slot for kCollective, tag for kMessage
  uint64_t bytes = 0;                // payload
  const char* algorithm = nullptr;   // of kCollective, a static string
  uint64_t sent_bytes = UINT64_MAX;  // of kCollective, as CollectiveLane::moved_bytes; UINT64_MAX: unknown
};

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // Records an event. Any thread; must not block for long, and allocates nothing.
  virtual void record(const TraceEvent& event) = 0;
};

}  // namespace weft
