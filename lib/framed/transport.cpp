#include "framed/transport.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/guard.h"
#include "base/text.h"

namespace weft::framed {
namespace {

// Bounds of the work of one progress(): calls of Link::progress, and fragments of one message that are sent.
constexpr int kProgressRounds = 16;
constexpr int kStreamPieces = 16;
// Most time from Link::close until the link has completed the frames of a cancelled send.
constexpr int64_t kDrainMs = 2000;

// Returns the status of messages that are cancelled.
Status closed() noexcept {
  return guarded(
      [] { return Status::error(Code::kCancelled, "the message was cancelled before it completed"); });
}

}  // namespace

FramedTransport::FramedTransport(int rank, int size, std::unique_ptr<Link> link, Clock& clock, Log& log,
                                 uint64_t first_name)
    : rank_(rank),
      clock_(clock),
      log_(log),
      peers_(static_cast<size_t>(size)),
      posted_(first_name),
      link_(std::move(link)) {
  for (int r = 0; r < size; r++) peer(r).rank = r;
}

FramedTransport::~FramedTransport() {
  for (Peer& peer : peers_) {
    while (!peer.posted.empty()) cancel(peer.posted.front().message);
    close(peer);
  }
  link_.reset();
}

Status FramedTransport::connect(int rank, ByteView address) {
  Peer& peer = this->peer(rank);
  WEFT_TRY(link_->connect(rank, address, &peer.limits));
  peer.connected = true;
  peer.may_send = kWindowBytes;
  return {};
}

void FramedTransport::retire(Posted& posted, Status status) {
  posted_.retire(posted, std::move(status));
  advanced_ = true;
}

void FramedTransport::send(int rank, const MessageTag& tag, const Descriptor& descriptor,
                           const std::byte* data, uint64_t size, Message* message) {
  Peer& peer = this->peer(rank);
  Posted& send = posted_.post(peer, message);
  message->on_its_way = false;
  send.is_send = true;
  send.source = data;
  send.size = size;
  bytes_sent_.fetch_add(size, std::memory_order_relaxed);
  if (peer.broken) return;  // report_broken() completes it
  const bool eager = size <= peer.limits.eager_bytes && cost(size) <= peer.may_send;
  if (eager) peer.may_send -= cost(size);
  send.going = eager;
  send.offered = !eager;
  send.other_name = send.name;
  send.moved = eager ? std::min(size, peer.limits.piece_bytes) : 0;
  send.first.frame = {.from = static_cast<uint32_t>(rank_),
                      .token = peer.token_out,
                      .slot = tag.slot,
                      .size = size,
                      .name = send.name,
                      .lane = tag.lane,
                      .step = tag.step,
                      .offered = send.offered,
                      .waits = message->waits,
                      .descriptor = descriptor};
  fly(send.first, data, send.moved);
  if (!eager || send.moved == size) return finish_if_done(send);
  streams_++;
  stream(send);
}

// Sends one frame of a message, with `size` bytes of data.
template <class Frame>
void FramedTransport::fly(Flight<Frame>& flight, const std::byte* data, uint64_t size) {
  Peer& peer = *flight.posted->peer;
  peer.sent++;
  flight.posted->in_flight++;
  const ByteView head = std::as_bytes(std::span(&flight.frame, 1));
  if (!link_->send(peer.rank, head, ByteView(data, size), flight)) {
    flight.posted->in_flight--;
    flight.posted->refused |= peer.broken;
  }
}

// Sends more fragments of a message that is `going`; at most kDepth are in flight. Returns true if it sent
// any.
bool FramedTransport::stream(Posted& send) {
  bool any = false;
  for (int pieces = 0; pieces < kStreamPieces && send.moved < send.size && !send.peer->broken; pieces++) {
    const auto part = std::find_if(send.parts.begin(), send.parts.end(),
                                   [](const Flight<Fragment>& flight) { return !flight.busy; });
    if (part == send.parts.end()) break;
    const uint64_t size = std::min(send.peer->limits.piece_bytes, send.size - send.moved);
    part->frame = {.from = static_cast<uint32_t>(rank_),
                   .token = send.peer->token_out,
                   .name = send.other_name,
                   .offset = send.moved,
                   .offered = send.offered};
    const std::byte* const data = send.source + send.moved;
    send.moved += size;
    if (send.moved == send.size) streams_--;
    fly(*part, data, size);
    any = true;
  }
  finish_if_done(send);
  return any;
}

// Completes a send if all its frames were sent. If the link has completed the last frame from inside
// Link::send, the message is done already.
void FramedTransport::finish_if_done(Posted& send) {
  if (send.message == nullptr) return;
  if (!send.going || send.moved < send.size || send.refused) return;
  send.message->on_its_way = true;
  if (send.in_flight == 0) retire(send, {});
}

// ---- Receives ----

void FramedTransport::receive(int rank, const MessageTag& tag, std::byte* data, uint64_t capacity,
                              Message* message) {
  Peer& peer = this->peer(rank);
  Posted& receive = posted_.post(peer, message);
  receive.is_send = false;
  receive.tag = tag;
  receive.target = data;
  receive.capacity = capacity;
  unexpected_.receive(peer, tag, [&](const Header& header, ByteView kept) { take(receive, header, kept); });
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
  return UnexpectedMessages::peek(peer(rank), lane, slot, descriptor);
}

// ---- Progress, cancellation and lost peers ----

bool FramedTransport::progress() {
  advanced_ = false;
  for (int i = 0; i < kProgressRounds && !advanced_ && !stopped_; i++) {
    if (!link_->progress()) break;
  }
  if (streams_ > 0) {
    for (Peer& peer : peers_) {
      posted_.each(peer, [&](Posted& posted) {
        if (posted.is_send && posted.going && posted.moved < posted.size) advanced_ |= stream(posted);
      });
    }
  }
  if (any_broken_) advanced_ |= report_broken();
  return advanced_;
}

void FramedTransport::cancel(Message* message) {
  auto* const posted = static_cast<Posted*>(message->impl);
  if (posted == nullptr) return;
  if (posted->is_send && posted->going && posted->moved < posted->size) streams_--;
  if (posted->in_flight > 0) drain(*posted);
  if (message->impl != nullptr) retire(*posted, closed());
}

// Waits until the link no longer reads the buffer of a send that is being cancelled. To end the use of one
// buffer, a link must close the peer's connection. That is acceptable, because the communicator has failed or
// is being destroyed when a send is cancelled. After kDrainMs it stops the whole link.
void FramedTransport::drain(const Posted& send) {
  close(*send.peer);
  const Deadline deadline = Deadline::after(clock_, kDrainMs, 0);
  for (uint32_t round = 0; !stopped_ && send.in_flight > 0; round++) {
    if (!link_->progress()) clock_.relax(round);
    if (!deadline.expired(clock_)) continue;
    log_.error(cat(name(), ": the link still uses a cancelled message to rank ", send.peer->rank, " after ",
                   kDrainMs, " ms; all connections are closed"));
    for (Peer& peer : peers_) {
      peer.connected = false;
      lose(peer, closed());
    }
    stopped_ = true;
    link_->stop();
  }
}

void FramedTransport::close(Peer& peer) {
  if (!std::exchange(peer.connected, false)) return;
  lose(peer, closed());
  link_->close(peer.rank);
}

// Marks a peer as lost. No message is sent to it any more. report_broken() fails its posted messages later.
void FramedTransport::lose(Peer& peer, Status why) {
  if (peer.broken) return;
  peer.broken = true;
  peer.why = std::move(why);
  peer.broken_ns = clock_.now_ns();
  any_broken_ = true;
}

// Fails the posted messages of peers that were lost at least kGraceNs ago. Messages with frames in flight
// stay until a later call. Returns true if any failed.
bool FramedTransport::report_broken() {
  const uint64_t now = clock_.now_ns();
  bool any = false;
  for (Peer& peer : peers_) {
    if (!peer.broken || now < peer.broken_ns + kGraceNs) continue;
    for (auto it = peer.posted.begin(); it != peer.posted.end();) {
      Posted& posted = *it++;
      if (posted.in_flight > 0) continue;
      if (posted.is_send && posted.going && posted.moved < posted.size) streams_--;
      retire(posted, peer.why);
      any = true;
    }
  }
  return any;
}

bool FramedTransport::settled() {
  return stopped_ || link_->settled();
}

TransportCounters FramedTransport::counters() const {
  TransportCounters counters;
  counters.bytes_sent = bytes_sent_.load(std::memory_order_relaxed);
  counters.bytes_received = bytes_received_.load(std::memory_order_relaxed);
  return counters;
}

void FramedTransport::note_transports() {
  std::set<std::string> all;
  for (const Peer& peer : peers_) {
    if (!peer.connected) continue;
    const std::string used = link_->path(peer.rank);
    all.insert(used);
    log_.debug(cat(name(), ": rank ", peer.rank, " is reached over ", used));
  }
  transports_ = list_text(all);
  log_.info(cat(name(), ": ", link_->about(), " over ", transports_));
}

void FramedTransport::send_note(Peer& peer, NoteKind kind, uint64_t first, uint64_t second) {
  if (!peer.connected || peer.broken) return;
  auto note =
      std::find_if(notes_.begin(), notes_.end(), [](const Flight<Note>& known) { return !known.busy; });
  if (note == notes_.end()) note = notes_.emplace(notes_.end());
  note->frame = {.from = static_cast<uint32_t>(rank_),
                 .token = peer.token_out,
                 .what = kind,
                 .first = first,
                 .second = second};
  peer.sent++;
  link_->send(peer.rank, std::as_bytes(std::span(&note->frame, 1)), {}, *note);
}

// ---- Called by the link ----

void FramedTransport::sent(InFlightFrame& frame, const Status& status) {
  frame.busy = false;
  Posted* const send = static_cast<Part&>(frame).posted;
  if (send == nullptr) return;
  send->in_flight--;
  if (!status.ok()) {
    send->refused = true;
    lose(*send->peer, status);
  }
  finish_if_done(*send);
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
                                " bytes of data): inconsistent length or offset, an unknown note, or more "
                                "unreceived messages than flow control allows"),
                            Evidence::kConnection)
                  .with_ranks({peer->rank}));
}

bool FramedTransport::arrived(Peer& peer, const Header& header, ByteView data) {
  const bool eager = header.offered == 0;
  if (eager ? data.size() > header.size || (data.empty() && header.size > 0) : !data.empty()) return false;
  Posted* const receive = PostedMessages::unmatched_receive(peer, header.tag());
  if (receive == nullptr) return unexpected_.keep(peer, header, data);
  take(*receive, header, data);
  return true;
}

bool FramedTransport::arrived(Peer& peer, const Fragment& fragment, ByteView data) {
  const bool offered = fragment.offered != 0;
  Posted* const receive = PostedMessages::matched_receive(peer, offered, fragment.name);
  if (receive != nullptr) {
    if (fragment.offset != receive->moved || data.size() > receive->size - receive->moved) return false;
    append(*receive, data);
    return true;
  }
  if (offered) return true;  // the receive was cancelled
  return UnexpectedMessages::append(peer, fragment, data);
}

bool FramedTransport::arrived(Peer& peer, const Note& note, ByteView data) {
  advanced_ = true;
  if (!data.empty() || note.what < NoteKind::kHello || note.what > NoteKind::kGo) return false;
  if (note.what == NoteKind::kHello) peer.hello = true;
  if (note.what == NoteKind::kReady) peer.ready = true;
  if (note.what == NoteKind::kCredit) {
    peer.may_send = std::min(kWindowBytes, peer.may_send + std::min(note.first, kWindowBytes));
  }
  if (note.what != NoteKind::kGo) return true;
  Posted* const send = PostedMessages::offered_send(peer, note.first);
  if (send == nullptr) return true;  // the send was cancelled
  send->going = true;
  send->other_name = note.second;
  if (send->size > 0) streams_++;
  finish_if_done(*send);
  return true;
}

}  // namespace weft::framed
