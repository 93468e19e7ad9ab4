// What ranks say to each other while a Group is founded, as bytes. Pure functions, for founding.cpp and
// tests; what is decoded is another process's word. Threads: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/process.h"
#include "base/status.h"
#include "thresholds.h"

namespace weft::shm {

// Who a rank is, the NUMA node that it is on, the largest arena that it can map, and the memory that it needs
// at once and its machine has.
struct Introduction {
  ProcessIdentity process;
  int32_t node = kNoNode;
  uint64_t arena_bytes = 0;
  uint64_t needed_bytes = 0;  // to back what is allocated anew
  uint64_t available_bytes = 0;
};

// By what others recognise a rank's segment, in its process.
struct Introduced {
  uint64_t nonce = 0;
  uint64_t mapping = 0;
  uint64_t nonce_address = 0;
  uint64_t base = 0;
};

// How a step of founding ended on a rank, its answers to questions of all, and the thresholds that it would
// take.
struct Verdict {
  Status status;
  uint8_t answers = 0;  // bits, 1: yes
  Thresholds thresholds;
};
inline constexpr uint8_t kCanPull = 1;
inline constexpr uint8_t kPullPays = 2;
inline constexpr uint8_t kMeasured = 4;    // thresholds: of these very ranks, by an earlier communicator
inline constexpr uint8_t kEmptyArena = 8;  // nothing lies in its arena yet, which is large enough to try
inline constexpr uint8_t kAllAnswers = 15;

Bytes encode(const Introduction& introduction);
Bytes encode(const Introduced& introduced);
Bytes encode(const Verdict& verdict);
// False for anything that encode does not write.
bool decode(ByteView bytes, Introduction* introduction);
bool decode(ByteView bytes, Introduced* introduced);
bool decode(ByteView bytes, Verdict* verdict);

// kNoMemory unless the machine has what all its ranks need. The same answer on all of them.
Status check_memory(const std::vector<Introduction>& ranks);

}  // namespace weft::shm
