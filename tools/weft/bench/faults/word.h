// The message that a rank of `weft bench faults` sends its parent through a pipe: its state, and the time
// limit for its next message.
#pragma once

#include <climits>
#include <cstdint>
#include <ctime>

namespace faults {

enum class Kind : int32_t {
  kCalling,  // about to make the call named in `text`; the next word follows within due_ms
  kWorking,  // in a working communicator: members, bits
  kBound,    // its reducer continues in a communicator with step `bits`
  kFault,    // the rank's own fault follows
  kRefused,  // weft_comm_create failed
  kFailed,   // its communicator failed
  kShrunk,   // weft_comm_shrink failed
  kWrong,    // something that must never happen, in `text`
  kEnded,    // everything is destroyed
};

inline const char* name(Kind kind) {
  constexpr const char* kNames[] = {"calling", "working", "bound", "fault", "refused",
                                    "failed",  "shrunk",  "wrong", "ended"};
  return kNames[static_cast<int>(kind)];
}

// The bit in Word::ranks for a rank whose first rank is unknown, because the members of its communicator have
// not met.
inline constexpr uint64_t kUnknownRank = uint64_t{1} << 63;

struct Word {
  Kind kind = Kind::kCalling;
  int32_t generation = 0;  // number of shrinks of this rank
  int32_t status = 0;      // weft_status
  int32_t evidence = 0;    // WEFT_EVIDENCE_*
  uint64_t at_ns = 0;      // CLOCK_MONOTONIC
  uint64_t due_ms = 0;     // 0: no limit
  uint64_t ranks = 0;      // kWorking, kBound: the members, else those at fault: one bit each, by first rank
  uint64_t bits = 0;       // kWorking: hash of a reduction's result
  char text[600] = {};
};
static_assert(sizeof(Word) <= 4096, "a pipe takes it whole or not at all (PIPE_BUF)");

inline uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace faults
