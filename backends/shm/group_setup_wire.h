// Encodes the messages that ranks exchange while a Group is created. Pure functions, for group_setup.cpp and
// tests. Decoded values come from another process and are not trusted. Threads: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/process.h"
#include "base/status.h"
#include "thresholds.h"

namespace weft::shm {

// A rank's process, a random number by which others recognise what it sends, the largest arena that it can
// map, the memory that it needs at once, and the memory that its machine has.
struct RankInfo {
  ProcessIdentity process;
  uint64_t nonce = 0;
  uint64_t arena_bytes = 0;
  uint64_t needed_bytes = 0;  // to back new allocations
  uint64_t available_bytes = 0;
};

// Addresses in the rank's process: of its nonce and of its segment.
struct AddressInfo {
  uint64_t nonce = 0;
  uint64_t segment = 0;
};

// The result of one step of group setup on a rank: its status, its answers to yes-no questions, and the
// thresholds that it would use.
struct SetupResult {
  Status status;
  uint8_t answers = 0;  // bits, 1: yes
  Thresholds thresholds;
};
inline constexpr uint8_t kCanPull = 1;
inline constexpr uint8_t kPullPays = 2;
inline constexpr uint8_t kMeasured = 4;  // thresholds: measured by an earlier communicator of the same ranks
inline constexpr uint8_t kAllAnswerBits = 7;

Bytes encode(const RankInfo& rank_info);
Bytes encode(const AddressInfo& address_info);
Bytes encode(const SetupResult& setup_result);
// Each returns false for anything that encode does not write.
bool decode(ByteView bytes, RankInfo* rank_info);
bool decode(ByteView bytes, AddressInfo* address_info);
bool decode(ByteView bytes, SetupResult* setup_result);

// Returns kNoMemory unless the machine has the memory that all its ranks need. The result is equal on all of
// them.
Status check_memory(const std::vector<RankInfo>& ranks);

}  // namespace weft::shm
