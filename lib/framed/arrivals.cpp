// The receiving side of FramedTransport. It checks frames, and matches messages with posted receives or
// retains them as unexpected messages. The link calls on_frame(); lanes call receive() and peek().
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/text.h"
#include "framed/transport.h"

namespace weft::framed {
namespace {

// Most unexpected messages of one rank. A lane has only a few, so a sender that exceeds this is faulty.
constexpr size_t kMostArrived = 65536;
// Most memory that is retained for reuse by later unexpected messages of all ranks, bytes.
constexpr uint64_t kMostIdleBytes = uint64_t{4} << 20;

}  // namespace

void FramedTransport::receive(int rank, const MessageTag& tag, std::byte* data, uint64_t capacity,
                              Message* message) {
  Posted& receive = post(rank, message);
  Peer& peer = *receive.peer;
  receive.is_send = false;
  receive.tag = tag;
  receive.target = data;
  receive.capacity = capacity;
  const auto it = std::find_if(peer.arrived.begin(), peer.arrived.end(),
                               [&](const Arrived& arrived) { return arrived.header.tag() == tag; });
  if (it == peer.arrived.end()) return;
  if (it->header.offered == 0) peer.arrived_bytes -= cost(it->header.size);
  take(receive, it->header, it->data);
  if (idle_bytes_ + it->data.capacity() > kMostIdleBytes) std::vector<std::byte>().swap(it->data);
  idle_bytes_ += it->data.capacity();
  unused_arrived_.splice(unused_arrived_.end(), peer.arrived, it);
}

// Matches a message with its receive. Copies the data that has arrived, or accepts the offer with kGo.
void FramedTransport::take(Posted& receive, const Header& header, ByteView data) {
  Message& message = *receive.message;
  Peer& peer = *receive.peer;
  const bool eager = header.offered == 0;
  message.peer_descriptor = header.descriptor;
  message.waits = header.waits;
  if (eager) return_credit(peer, cost(header.size));
  if (header.size > receive.capacity) {
    // An offer gets no kGo, because the communicator is about to fail.
    return retire(receive,
                  Status::error(Code::kMismatch, cat("rank ", peer.rank, " sent a message of ", header.size,
                                                     " bytes, expected at most ", receive.capacity,
                                                     ": the ranks called with different sizes")));
  }
  message.received_bytes = header.size;
  receive.going = true;
  receive.offered = !eager;
  receive.other_name = header.name;
  receive.size = header.size;
  if (!eager) send_note(peer, NoteKind::kGo, header.name, receive.name);
  append(receive, data);
}

void FramedTransport::append(Posted& receive, ByteView data) {
  if (!data.empty()) std::memcpy(receive.target + receive.moved, data.data(), data.size());
  receive.moved += data.size();
  bytes_received_.fetch_add(data.size(), std::memory_order_relaxed);
  advanced_ = true;
  if (receive.moved == receive.size) retire(receive, {});
}

// Returns consumed bytes to the sender's window. It sends kCredit for half a window or more at a time,
// before the sender runs out.
void FramedTransport::return_credit(Peer& peer, uint64_t bytes) {
  peer.owed += bytes;
  if (peer.owed >= kWindowBytes / 2) send_note(peer, NoteKind::kCredit, std::exchange(peer.owed, 0));
}

bool FramedTransport::peek(int rank, uint32_t lane, uint64_t slot, Descriptor* descriptor) {
  for (const Arrived& arrived : peer(rank).arrived) {
    if (arrived.header.lane != lane || arrived.header.slot != slot) continue;
    *descriptor = arrived.header.descriptor;
    return true;
  }
  return false;
}

void FramedTransport::on_frame(ByteView head, ByteView data) {
  FrameKind kind = FrameKind::kMessage;
  if (head.size() >= sizeof kind) std::memcpy(&kind, head.data(), sizeof kind);
  switch (kind) {
    case FrameKind::kFragment:
      return handle<Fragment>(head, data);
    case FrameKind::kNote:
      return handle<Note>(head, data);
    default:
      return handle<Header>(head, data);
  }
}

// Checks that a frame carries the token that this rank issued to its sender, and processes it. Discards all
// other frames and logs the first of them.
template <class Frame>
void FramedTransport::handle(ByteView bytes, ByteView data) {
  Frame frame;
  const bool known = parse(bytes, &frame) && frame.kind == Frame().kind && frame.from < peers_.size();
  Peer* const peer = known ? &peers_[frame.from] : nullptr;
  if (peer == nullptr || peer->token_in == 0 || frame.token != peer->token_in) {
    if (!std::exchange(invalid_frame_logged_, true)) {
      log_.warn(
          cat(name(), ": discarded a frame of ", bytes.size() + data.size(),
              " bytes without a valid token of a rank of this communicator; further ones are not logged"));
    }
    return;
  }
  peer->received++;
  const bool closed = !peer->connected && peer->broken;
  if (closed || arrived(*peer, frame, data)) return;
  lose(*peer, Status::error(Code::kPeerFailed,
                            cat("rank ", peer->rank, " sent an invalid frame over ", name(), " (kind ",
                                static_cast<uint32_t>(frame.kind), ", ", data.size(),
                                " bytes of data): inconsistent length or offset, or more unreceived messages "
                                "than flow control allows"),
                            Evidence::kConnection)
                  .with_ranks({peer->rank}));
}

bool FramedTransport::arrived(Peer& peer, const Header& header, ByteView data) {
  const bool eager = header.offered == 0;
  if (eager ? data.size() > header.size || (data.empty() && header.size > 0) : !data.empty()) return false;
  const MessageTag tag = header.tag();
  const auto it = std::find_if(peer.posted.begin(), peer.posted.end(), [&](const Posted& posted) {
    return !posted.is_send && !posted.going && posted.tag == tag;
  });
  if (it == peer.posted.end()) return keep(peer, header, data);
  take(*it, header, data);
  return true;
}

// Retains an unexpected message, in free memory that is large enough if there is any. Returns false if the
// sender exceeds its window or kMostArrived.
bool FramedTransport::keep(Peer& peer, const Header& header, ByteView data) {
  const bool eager = header.offered == 0;
  if (peer.arrived.size() >= kMostArrived) return false;
  if (eager && (header.size > kWindowBytes || peer.arrived_bytes + cost(header.size) > kWindowBytes)) {
    return false;
  }
  if (unused_arrived_.empty()) unused_arrived_.emplace_back();
  auto room = std::find_if(unused_arrived_.begin(), unused_arrived_.end(), [&](const Arrived& unused) {
    return !eager || unused.data.capacity() >= header.size;
  });
  if (room == unused_arrived_.end()) room = unused_arrived_.begin();
  idle_bytes_ -= room->data.capacity();
  peer.arrived.splice(peer.arrived.end(), unused_arrived_, room);
  Arrived& arrived = peer.arrived.back();
  arrived.header = header;
  arrived.data.clear();
  if (!eager) return true;
  peer.arrived_bytes += cost(header.size);
  arrived.data.reserve(header.size);
  arrived.data.insert(arrived.data.end(), data.begin(), data.end());
  return true;
}

bool FramedTransport::arrived(Peer& peer, const Fragment& fragment, ByteView data) {
  const bool offered = fragment.offered != 0;
  const auto receive = std::find_if(peer.posted.begin(), peer.posted.end(), [&](const Posted& posted) {
    return !posted.is_send && posted.going && posted.offered == offered &&
           fragment.name == (offered ? posted.name : posted.other_name);
  });
  if (receive != peer.posted.end()) {
    if (fragment.offset != receive->moved || data.size() > receive->size - receive->moved) return false;
    append(*receive, data);
    return true;
  }
  if (offered) return true;  // the receive was cancelled
  const auto kept = std::find_if(peer.arrived.begin(), peer.arrived.end(), [&](const Arrived& arrived) {
    return arrived.header.offered == 0 && arrived.header.name == fragment.name;
  });
  if (kept == peer.arrived.end()) return true;
  if (fragment.offset != kept->data.size() || data.size() > kept->header.size - kept->data.size())
    return false;
  kept->data.insert(kept->data.end(), data.begin(), data.end());
  return true;
}

bool FramedTransport::arrived(Peer& peer, const Note& note, ByteView data) {
  advanced_ = true;
  if (!data.empty()) return false;
  if (note.what == NoteKind::kHello) peer.hello = true;
  if (note.what == NoteKind::kReady) peer.ready = true;
  if (note.what == NoteKind::kCredit) {
    peer.may_send = std::min(kWindowBytes, peer.may_send + std::min(note.first, kWindowBytes));
  }
  if (note.what != NoteKind::kGo) return true;
  const auto it = std::find_if(peer.posted.begin(), peer.posted.end(), [&](const Posted& posted) {
    return posted.is_send && !posted.going && posted.name == note.first;
  });
  if (it == peer.posted.end()) return true;  // the send was cancelled
  it->going = true;
  it->other_name = note.second;
  if (it->size > 0) streams_++;
  finish_if_done(*it);
  return true;
}

}  // namespace weft::framed
