// Messages between members and the store, inside frames (frame.h). A frame is a type and its fields; each
// struct here is one frame type with its encoding. Decoding checks every length and range: an invalid frame
// is an error of its sender.
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

// Joins the rendezvous `sequence` of `job` as `rank` of `size`.
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

// Ranks that have not contributed to the current round, and the store's notes about them.
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

// Encodes a part of a result, of about kPartBytes: the parts from `first` on. Sets *next to the first part of
// the next frame.
inline constexpr size_t kPartBytes = 64u << 10;
Bytes encode_result(uint64_t round, const std::vector<Bytes>& parts, size_t first, size_t* next);

}  // namespace weft::store
