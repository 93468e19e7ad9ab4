// One other rank, as the transport sees it: what waits for it and what came from it. A value without
// behaviour: transport.cpp, arrivals.cpp and meet.cpp work on it. Threads: under the engine's drive lock.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <vector>

#include "core/transport.h"
#include "frames/link.h"
#include "frames/wire.h"

namespace weft::frames {

struct Peer;
struct Posted;

// Parts of one message that the link holds at a time.
inline constexpr size_t kDepth = 4;

// A frame of a message.
struct Part : Lent {
  Posted* posted = nullptr;  // null: of a note
};
template <class Frame>
struct Flight : Part {
  Frame frame;
};

// A send, or a receive. Receives never lend their buffer to the link: it is written in heard() alone.
struct Posted {
  Peer* peer = nullptr;
  Message* message = nullptr;  // null once it is done
  bool is_send = false;
  bool going = false;       // receives: their message comes; sends: what is not sent yet may be
  bool offered = false;     // the message waits, or waited, for kGo
  uint64_t name = 0;        // for the other side; never 0, never used again
  uint64_t other_name = 0;  // the other side's
  uint64_t size = 0;        // of a send, or of the message that is being received
  uint64_t moved = 0;       // of that
  uint32_t in_flight = 0;   // what the link holds of it: while there is any, it reads the buffer
  bool refused = false;     // a part of it was not sent
  MessageTag tag;           // receives
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  uint64_t capacity = 0;
  Flight<Header> first;
  std::array<Flight<Fragment>, kDepth> parts;
  std::list<Posted>::iterator self;
};

// A message, or the offer of one, that no receive was posted for.
struct Arrived {
  Header header;
  std::vector<std::byte> data;  // an eager one's, as far as it has come
};

struct Peer {
  int rank = 0;
  bool connected = false;  // from connect to close
  LinkLimits limits;
  uint64_t token_in = 0;   // what its messages must show
  uint64_t token_out = 0;  // what ours must show there
  std::list<Posted> posted;
  std::list<Arrived> arrived;
  uint64_t arrived_bytes = 0;  // what eager messages in `arrived` count against the window
  uint64_t may_send = 0;       // eager bytes that the peer has room for
  uint64_t owed = 0;           // eager bytes that were taken and not told yet
  uint64_t sent = 0;           // frames, each way
  uint64_t received = 0;
  bool hello = false;
  bool ready = false;
  // After the link has lost it, or it was closed.
  bool broken = false;
  Status why;
  uint64_t broken_ns = 0;
};

}  // namespace weft::frames
