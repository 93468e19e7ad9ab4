// Formats of the heads of frames, which FramedTransport writes, and parses on another rank. Any process that
// reaches a link's address may send frames to it. The receiver therefore checks length, kind, sender and
// token of a head before it uses the other fields. Threads: values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/buffer.h"
#include "transport/transport.h"

namespace weft::framed {

enum class FrameKind : uint32_t {
  kMessage = 1,   // Header, and the first piece of an eager message's data
  kFragment = 2,  // Fragment, and a further piece of a message's data
  kNote = 3,      // Note, no data
};

// Head of the first frame of a message of Transport::send.
struct Header {
  FrameKind kind = FrameKind::kMessage;
  uint32_t from = 0;
  uint64_t token = 0;  // issued by the receiver for this sender and this communicator
  uint64_t slot = 0;
  uint64_t size = 0;  // of the whole message's data, bytes
  uint64_t name = 0;  // identifies the message; chosen by the sender
  uint32_t lane = 0;
  uint32_t step = 0;
  uint32_t offered = 0;  // 0: eager, the data follows; 1: an offer, the data is sent after kGo
  uint32_t reserved = 0;
  uint64_t waits = 0;  // Message::waits
  Descriptor descriptor;

  MessageTag tag() const { return {slot, lane, step}; }
};
static_assert(sizeof(Header) == 96);

// Head of each further frame of a message. The frames of a message arrive in order.
struct Fragment {
  FrameKind kind = FrameKind::kFragment;
  uint32_t from = 0;
  uint64_t token = 0;
  uint64_t name = 0;
  uint64_t offset = 0;   // of this frame's data within the message, bytes
  uint32_t offered = 0;  // 0: name is the sender's, from the Header; 1: name is the receiver's, from kGo
  uint32_t reserved = 0;
};
static_assert(sizeof(Fragment) == 40);

// Control frames of the transport.
enum class NoteKind : uint32_t {
  kHello = 1,   // the sender has connected to the receiver
  kReady = 2,   // the sender has received kHello from all ranks
  kCredit = 3,  // first: further eager bytes that the receiver of this note may send
  kGo = 4,      // accepts an offer. first: Header::name of the offer; second: name for its fragments
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

// Length of the longest head, bytes.
inline constexpr size_t kMostHeadBytes = sizeof(Header);

// Copies a head that another process sent. Returns false if its length is not sizeof(T).
template <class T>
bool parse(ByteView bytes, T* value) {
  if (bytes.size() != sizeof(T)) return false;
  std::memcpy(value, bytes.data(), sizeof(T));
  return true;
}

// Returns the head of a frame whose head and data are contiguous. The frame's kind determines the length; an
// unknown kind counts as kMessage. A shorter frame is returned whole.
inline ByteView head_of(ByteView frame) {
  FrameKind kind = FrameKind::kMessage;
  if (frame.size() >= sizeof kind) std::memcpy(&kind, frame.data(), sizeof kind);
  const size_t size = kind == FrameKind::kFragment ? sizeof(Fragment)
                      : kind == FrameKind::kNote   ? sizeof(Note)
                                                   : sizeof(Header);
  return frame.first(std::min(size, frame.size()));
}

}  // namespace weft::framed
