// lib/tagged: messages with tags, and receives from any rank (weft_send_tagged, weft_recv_tagged).
//
// Messages (messages.h) is the object that the C layer calls: submission, deadlines, departed ranks. Matching
// decides which receive takes which message: a state machine without threads and lanes. Outgoing sends frames
// to one other rank, Incoming receives them, and frame.h has their format. OwnMessages are those of a rank to
// itself.
//
// It uses base and core, and only lib/capi uses it. It attaches to a communicator as a engine/comm_part.h.
// All of it, except what messages.h says otherwise, runs under the progress lock.
//
// This header: one send or receive, from its submission to its completion.
#pragma once

#include <cstdint>
#include <list>
#include <string>

#include "engine/flight.h"
#include "tagged/frame.h"
#include "transport/request.h"

namespace weft::tagged {

inline constexpr int kAnySource = FlightMessage::kAnyPeer;
inline constexpr uint64_t kAnyTag = FlightMessage::kAnyTag;

// The message that a receive has taken.
struct Taken {
  int source = 0;
  uint64_t tag = 0;
  uint64_t count = 0;  // elements of the message's own dtype
};

// Called when a receive has taken a message, before its request completes. write may be null.
struct Receipt {
  void (*write)(void* target, const Taken& message);
  void* target;
};

struct Operation {
  enum class State {
    kQueued,     // not begun
    kPosted,     // receive: no message has matched
    kWaiting,    // send: its peer has heard nothing of it
    kOffered,    // send: no receive has accepted it
    kStreaming,  // send or receive: matched, its data is sent in chunks
  };
  Request* request = nullptr;
  uint64_t tag = 0;
  Receipt receipt = {nullptr, nullptr};
  State state = State::kQueued;
  uint64_t order = 0;  // of its call
  uint64_t id = 0;     // send: of its offer
  uint64_t moved = 0;  // send: bytes of the chunks that were sent
  int source = 0;      // receive that is streaming
  Status ended;        // not ok: completes with it once the chunk that is being moved is complete
  Status cancelled;    // receive that is matched; not ok: completes with it if its sender gives up
  uint64_t fails_ns = 0;
  uint64_t since_ns = 0;  // time at which it began, roughly
  bool warned = false;
  bool counted = false;                 // in Messages' count of operations that wait for its peer
  std::list<Operation>::iterator self;  // in Messages' list

  bool sends() const { return request->args.coll == Coll::kSend; }
  int peer() const { return request->args.peer; }
  // The rank that it waits for: a receive from any rank that has matched waits for its source.
  int awaited() const { return !sends() && state == State::kStreaming ? source : peer(); }
  Dtype dtype() const { return request->args.dtype; }
  uint64_t bytes() const { return request->args.count * dtype_size(dtype()); }
  Header header() const {  // of a send
    return {.kind = FrameOf::kEager, .dtype = dtype(), .tag = tag, .bytes = bytes()};
  }
};

// Reports the message that a receive takes. Returns kMismatch if the receive has no room for it.
Status take(const Operation& receive, int rank, int source, const Header& message);

// Returns the operation's entry in the flight record, as it is now.
FlightMessage flight_of(const Operation& operation);
// Returns "send_tagged f32 x 10 to rank 1 with tag 7 on rank 0".
std::string text_of(const Operation& operation, int rank);

// ---- Errors. rank: this one ----

// One end of a message: its dtype, and its bytes or its room.
struct End {
  int rank = 0;
  Dtype dtype = Dtype::kU8;
  uint64_t bytes = 0;
};
Status mismatch(int rank, uint64_t tag, const End& sender, const End& receiver);
// The sender has given up a message of which a part had arrived.
Status withdrawn(int source, uint64_t tag, uint64_t received, uint64_t bytes);
// The operation has passed its deadline.
Status late(int rank, const Operation& operation);
// lost: the rank that the operation waits for, or kAnySource if all other ranks have left.
Status left(int rank, int lost, const Operation& operation);

}  // namespace weft::tagged
