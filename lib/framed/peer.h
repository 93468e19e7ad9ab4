// The transport's state for one other rank: posted messages, unexpected messages and connection state. Plain
// data, used by transport.cpp, connect.cpp, PostedMessages and UnexpectedMessages. Threads: guarded by the
// progress lock.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <vector>

#include "framed/link.h"
#include "framed/wire.h"
#include "transport/transport.h"

namespace weft::framed {

struct Peer;
struct Posted;

// Most fragments of one message that are in flight at a time.
inline constexpr size_t kDepth = 4;

// A frame in flight, and the message that it belongs to.
struct Part : InFlightFrame {
  Posted* posted = nullptr;  // null: the frame is a Note
};
// A frame with its head.
template <class Frame>
struct Flight : Part {
  Frame frame;
};

// A posted send or receive. The link never accesses the buffer of a receive: FramedTransport copies data to
// it.
struct Posted {
  Peer* peer = nullptr;
  Message* message = nullptr;  // null once it is done
  bool is_send = false;
  bool going = false;       // receives: matched with a message; sends: the remaining data may be sent
  bool offered = false;     // the message was offered, not sent eagerly
  uint64_t name = 0;        // identifies this send or receive to the peer; never 0, never reused
  uint64_t other_name = 0;  // receives: the sender's name; sends: the name that the fragments carry
  uint64_t size = 0;        // of the message, bytes; receives: valid if going
  uint64_t moved = 0;       // bytes of it that were passed to the link, or received
  uint32_t in_flight = 0;   // sends: frames that the link holds; it may read the buffer while there are any
  bool refused = false;     // a frame of it was not sent
  MessageTag tag;           // receives
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  uint64_t capacity = 0;
  Flight<Header> first;
  std::array<Flight<Fragment>, kDepth> parts;
  std::list<Posted>::iterator self;
};

// An unexpected message: an eager message or an offer that arrived before its receive was posted.
struct Arrived {
  Header header;
  std::vector<std::byte> data;  // of an eager message, as received so far
};

struct Peer {
  int rank = 0;
  bool connected = false;  // true from connect to close
  LinkLimits limits;
  uint64_t token_in = 0;   // frames from the peer must carry it
  uint64_t token_out = 0;  // frames to the peer must carry it
  std::list<Posted> posted;
  std::list<Arrived> arrived;
  uint64_t arrived_bytes = 0;  // window bytes that eager messages in `arrived` use
  uint64_t may_send = 0;       // eager bytes that the peer has room for
  uint64_t owed = 0;           // eager bytes that were consumed and not yet credited to the peer
  uint64_t sent = 0;           // frames
  uint64_t received = 0;       // frames
  bool hello = false;          // its kHello has arrived
  bool ready = false;          // its kReady has arrived
  // True after the link has lost the peer, the peer has violated the protocol, or this rank has closed the
  // connection.
  bool broken = false;
  Status why;
  uint64_t broken_ns = 0;
};

}  // namespace weft::framed
