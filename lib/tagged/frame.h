// The format of the frames that two ranks exchange about tagged messages (messages.h), over one
// lane in each direction. A frame comes from another process and may hold anything: valid() checks what can
// be checked without knowing the messages under way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace weft::tagged {

inline constexpr uint64_t kFrameBytes = 256;
// Longest message that its sender copies, and its receiver keeps until a receive asks for it. A longer
// message is offered first, and sent when a receive has taken the offer.
inline constexpr uint64_t kEagerMessageBytes = 16 << 10;
// Longest part of an offered message. Frames about other messages are sent between two parts.
inline constexpr uint64_t kMessageChunkBytes = 1 << 20;
// Memory of the messages that one rank has copied for another, and that no receive has taken.
inline constexpr uint64_t kEagerWindowBytes = 256 << 10;
inline constexpr uint64_t kEagerMessageCost = 64;  // of each of them, beside its data
// Offered messages from one rank to another that are not complete.
inline constexpr uint64_t kMostOffers = 4096;
inline constexpr uint64_t kMostMessageBytes = uint64_t{1} << 62;

enum class FrameOf : uint8_t {
  kEager = 1,     // a whole message: tag, dtype, bytes. Its data is in the frame, or follows it if longer
  kOffer = 2,     // a message that waits for a receive: id, tag, dtype, bytes
  kAccept = 3,    // a receive has taken the offer `id`
  kRefuse = 4,    // a receive has taken the offer `id`, but has another dtype or is too short: dtype, bytes
  kChunk = 5,     // the next `bytes` of the offered message `id` follow
  kWithdraw = 6,  // the sender has given up the offered message `id`
  kCredit = 7,    // `bytes` of the window are free again
};

struct Header {
  FrameOf kind = FrameOf::kEager;
  Dtype dtype = Dtype::kU8;
  uint8_t reserved[6] = {};
  uint64_t id = 0;  // of an offer: 1 for the first of its sender to its receiver, and so on
  uint64_t tag = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(Header) == 32);

struct Frame {
  Header header;
  std::byte data[kFrameBytes - sizeof(Header)] = {};
};
static_assert(sizeof(Frame) == kFrameBytes);
inline constexpr uint64_t kInlineMessageBytes = sizeof(Frame::data);

// Window that a message takes.
constexpr uint64_t eager_cost(uint64_t bytes) {
  return kEagerMessageCost + bytes;
}

// Returns false if no rank sends such a frame.
inline bool valid(const Header& header) {
  const uint64_t element = dtype_size(header.dtype);
  switch (header.kind) {
    case FrameOf::kEager:
      return element > 0 && header.bytes % element == 0 && header.bytes <= kEagerMessageBytes &&
             header.tag != UINT64_MAX;
    case FrameOf::kOffer:
      return element > 0 && header.bytes % element == 0 && header.bytes <= kMostMessageBytes &&
             header.tag != UINT64_MAX && header.id > 0;
    case FrameOf::kRefuse:
      return element > 0 && header.bytes % element == 0 && header.bytes <= kMostMessageBytes;
    case FrameOf::kChunk:
      return header.bytes > 0 && header.bytes <= kMessageChunkBytes;
    case FrameOf::kCredit:
      return header.bytes > 0 && header.bytes <= kEagerWindowBytes;
    case FrameOf::kAccept:
    case FrameOf::kWithdraw:
      return header.id > 0;
  }
  return false;
}

}  // namespace weft::tagged
