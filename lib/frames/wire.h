// What travels in front of every message over a link, and how it is checked. Written by one rank's transport
// (transport.cpp), read by another's; a link may be open to anybody who reaches it, so nothing in here is
// believed before parse has looked at it. Threads: values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/buffer.h"
#include "core/transport.h"

namespace weft::frames {

enum class FrameKind : uint32_t {
  kMessage = 1,   // Header, and the first part of an eager message's data
  kFragment = 2,  // Fragment, and a further part of a message's data
  kNote = 3,      // Note
};

// In front of a message of Transport::send.
struct Header {
  FrameKind kind = FrameKind::kMessage;
  uint32_t from = 0;
  uint64_t token = 0;  // made by the receiver for this sender and this communicator
  uint64_t slot = 0;
  uint64_t size = 0;  // of the data
  uint64_t name = 0;  // the sender's, for this message
  uint32_t lane = 0;
  uint32_t step = 0;
  uint32_t offered = 0;  // 0: the data follows; 1: it waits for kGo
  uint32_t reserved = 0;
  uint64_t waits = 0;  // Message::waits
  Descriptor descriptor;

  MessageTag tag() const { return {slot, lane, step}; }
};
static_assert(sizeof(Header) == 96);

// In front of a further part. Parts of a message come in order.
struct Fragment {
  FrameKind kind = FrameKind::kFragment;
  uint32_t from = 0;
  uint64_t token = 0;
  uint64_t name = 0;
  uint64_t offset = 0;
  uint32_t offered = 0;  // 0: name is the sender's, of the header; 1: the receiver's, from kGo
  uint32_t reserved = 0;
};
static_assert(sizeof(Fragment) == 40);

// What transports tell each other beside messages.
enum class NoteKind : uint32_t {
  kHello = 1,   // I reach you
  kReady = 2,   // I have everybody's hello
  kCredit = 3,  // first: bytes of eager messages that you may send again
  kGo = 4,      // first: your offer's name; second: my receive's, which your fragments shall carry
};
struct Note {
  FrameKind kind = FrameKind::kNote;
  uint32_t from = 0;
  uint64_t token = 0;
  NoteKind what = NoteKind::kHello;
  uint32_t reserved = 0;
  uint64_t first = 0;
  uint64_t second = 0;
};
static_assert(sizeof(Note) == 40);

// What stands in front of a frame's data, the longest of the three.
inline constexpr size_t kMostHeadBytes = sizeof(Header);

// Copy what another process sent; false when its length is not that of a T.
template <class T>
bool parse(ByteView bytes, T* value) {
  if (bytes.size() != sizeof(T)) return false;
  std::memcpy(value, bytes.data(), sizeof(T));
  return true;
}

// Of a frame in one piece: its head, of the kind that it says; all of it if it is too short or of no kind.
inline ByteView head_of(ByteView frame) {
  FrameKind kind = FrameKind::kMessage;
  if (frame.size() >= sizeof kind) std::memcpy(&kind, frame.data(), sizeof kind);
  const size_t size = kind == FrameKind::kFragment ? sizeof(Fragment)
                      : kind == FrameKind::kNote   ? sizeof(Note)
                                                   : sizeof(Header);
  return frame.first(std::min(size, frame.size()));
}

}  // namespace weft::frames
