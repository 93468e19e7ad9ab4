// What members and the store say to each other, inside frames (frame.h). A frame is a type and its fields;
// each struct here is one of them, with the bytes it is made of. Decoding checks every length and range: a
// frame that does not fit is an error of its sender.
//
//   member -> store   Join, then any number of Give and WhoIsMissing, then Leave, or Failed for all
//   store -> member   Joined; Result for every round, in parts; Missing; Failed or Closing before the end
#pragma once

#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"

namespace weft::store {

enum class Type : uint8_t {
  kJoin = 1,
  kGive,
  kWhoIsMissing,
  kLeave,
  kJoined = 32,
  kResult,
  kMissing,
  kFailed,
  kClosing,
};

inline constexpr uint32_t kMaxJob = 512;    // bytes of a job's name
inline constexpr uint32_t kMaxText = 2048;  // bytes of an error's text

// Take part in the meeting `sequence` of `job` as `rank` of `size`.
struct Join {
  std::string job;
  uint64_t sequence = 0;
  int32_t rank = 0;
  int32_t size = 0;
};

// This rank's bytes for round `round`; rounds count from 0.
struct Give {
  uint64_t round = 0;
  Bytes bytes;
};

// The bytes of ranks first, first + 1, ...: a part of a round's result.
struct Result {
  uint64_t round = 0;
  int32_t first = 0;
  std::vector<Bytes> parts;
};

// Ranks that have not given their bytes of the current round, and what the store knows about them.
struct Missing {
  std::vector<int> ranks;  // at most kMaxRanksInText of them
  std::string note;
};

inline constexpr size_t kMaxRanksInText = 256;

Bytes encode(const Join& join);
Bytes encode(const Give& give);
Bytes encode(const Missing& missing);
Bytes encode_failed(const Status& status);
Bytes encode_plain(Type type);  // kWhoIsMissing, kLeave, kJoined, kClosing

Type type_of(ByteView frame);  // Type(0) for an empty frame
bool decode(ByteView frame, Join* join);
bool decode(ByteView frame, Give* give);
bool decode(ByteView frame, Result* result);
bool decode(ByteView frame, Missing* missing);
bool decode_failed(ByteView frame, Status* status);

// A result is sent in frames of about kPartBytes: encode parts from `first` on, and say where the next frame
// begins.
inline constexpr size_t kPartBytes = 64u << 10;
Bytes encode_result(uint64_t round, const std::vector<Bytes>& parts, size_t first, size_t* next);

}  // namespace weft::store
