// One other rank, as the transport sees it: UCX's endpoint, what waits for it and what came from it. A value
// without behaviour: transport.cpp and connect.cpp work on it. Threads: under the engine's drive lock.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstdint>
#include <list>
#include <vector>

#include "core/transport.h"
#include "wire.h"

namespace weft::ucx {

class UcxTransport;
struct Peer;
struct Posted;

// Parts of one message that UCX holds at a time.
inline constexpr size_t kDepth = 4;

// Something that UCX sends: it reads the frame here until it is done.
template <class Frame>
struct Flight {
  Posted* posted = nullptr;
  bool busy = false;
  Frame frame;
};

// A send, or a receive. Receives never lend their buffer to UCX: it is written in callbacks alone.
struct Posted {
  UcxTransport* transport = nullptr;
  Peer* peer = nullptr;
  Message* message = nullptr;
  bool is_send = false;
  bool going = false;       // receives: their message comes; sends: what is not sent yet may be
  bool offered = false;     // the message waits, or waited, for kGo
  uint64_t name = 0;        // for the other side; never 0, never used again
  uint64_t other_name = 0;  // the other side's
  uint64_t size = 0;        // of a send, or of the message that is being received
  uint64_t moved = 0;       // of that
  uint32_t in_flight = 0;   // what UCX holds of it: while there is any, it reads the buffer
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

// A note under way.
struct Told {
  bool done = false;
  Note note;
};

struct Peer {
  int rank = 0;
  // None before the ranks meet (connect.cpp), and none after it was closed (then the peer is broken).
  ucp_ep_h endpoint = nullptr;
  uint64_t piece_bytes = 0;  // what its endpoint takes in one piece
  uint64_t eager_bytes = 0;  // up to here messages are sent without asking
  uint64_t token_in = 0;     // what its messages must show
  uint64_t token_out = 0;    // what ours must show there
  std::list<Posted> posted;
  std::list<Arrived> arrived;
  uint64_t arrived_bytes = 0;  // what eager messages in `arrived` count against the window
  uint64_t may_send = 0;       // eager bytes that the peer has room for
  uint64_t owed = 0;           // eager bytes that were taken and not told yet
  uint64_t sent = 0;           // frames, each way
  uint64_t received = 0;
  bool hello = false;
  bool ready = false;
  // After an error of the endpoint.
  bool broken = false;
  Status why;
  uint64_t broken_ns = 0;
};

}  // namespace weft::ucx
