#include "transport.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/guard.h"
#include "base/text.h"

namespace weft::loopback {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

void remove(Mailbox& box, std::list<Envelope>::iterator envelope) {
  box.unused.splice(box.unused.end(), box.messages, envelope);
}

Envelope& add(Mailbox& box) {
  if (box.unused.empty()) box.unused.emplace_back();
  box.messages.splice(box.messages.end(), box.unused, box.unused.begin());
  Envelope& envelope = box.messages.back();
  envelope.id = ++box.last_id;
  return envelope;
}

}  // namespace

LoopbackTransport::LoopbackTransport(std::shared_ptr<Fabric> fabric, int rank)
    : fabric_(std::move(fabric)), rank_(rank) {}

LoopbackTransport::~LoopbackTransport() {
  while (!posted_.empty()) cancel(posted_.front().message);
}

LoopbackTransport::Posted& LoopbackTransport::post() {
  if (unused_.empty()) unused_.emplace_back();
  posted_.splice(posted_.end(), unused_, unused_.begin());
  Posted& posted = posted_.back();
  posted.self = std::prev(posted_.end());
  return posted;
}

void LoopbackTransport::retire(Posted& posted, Status status) {
  posted.message->status = std::move(status);
  posted.message->done = true;
  posted.message->impl = nullptr;
  unused_.splice(unused_.end(), posted_, posted.self);
}

void LoopbackTransport::send(int peer, const MessageTag& tag, const Descriptor& descriptor,
                             const std::byte* data, uint64_t size, Message* message) {
  bytes_sent_.fetch_add(size, std::memory_order_relaxed);
  const bool eager = size <= kEagerBytes;
  Posted* posted = nullptr;
  if (!eager) {
    posted = &post();
    posted->is_send = true;
    posted->peer = peer;
    posted->message = message;
    posted->taken.store(false, std::memory_order_relaxed);
    message->impl = posted;
  }
  Mailbox& box = fabric_->box(rank_, peer);
  {
    const std::lock_guard lock(box.mutex);
    Envelope& envelope = add(box);
    envelope.tag = tag;
    envelope.descriptor = descriptor;
    envelope.waits = message->waits;
    envelope.size = size;
    envelope.visible_ns = fabric_->delays() ? fabric_->delays()->visible_ns(rank_, peer) : 0;
    envelope.matched = true;  // hides it until it is complete: the copy may fail for lack of memory
    envelope.data = eager ? nullptr : data;
    envelope.taken = eager ? nullptr : &posted->taken;
    envelope.eager.clear();
    if (eager && size > 0) envelope.eager.assign(data, data + size);
    envelope.matched = false;
  }
  box.arrivals.fetch_add(1, std::memory_order_release);
  if (eager) message->done = true;
}

void LoopbackTransport::receive(int peer, const MessageTag& tag, std::byte* data, uint64_t capacity,
                                Message* message) {
  Posted& receive = post();
  receive.is_send = false;
  receive.peer = peer;
  receive.message = message;
  receive.tag = tag;
  receive.data = data;
  receive.capacity = capacity;
  receive.copied = 0;
  receive.envelope = 0;
  receive.seen_arrivals = UINT64_MAX;
  message->impl = &receive;
}

bool LoopbackTransport::progress() {
  bool any = false;
  for (auto it = posted_.begin(); it != posted_.end();) {
    Posted& posted = *it++;  // advance may remove it
    any |= advance(posted);
  }
  return any;
}

bool LoopbackTransport::advance(Posted& posted) {
  if (!posted.is_send) return advance_receive(posted);
  if (!posted.taken.load(std::memory_order_acquire)) return false;
  retire(posted, {});
  return true;
}

bool LoopbackTransport::visible(const Envelope& envelope) const {
  return fabric_->delays() == nullptr || fabric_->delays()->now_ns() >= envelope.visible_ns;
}

// Finds the message, and copies a piece of it.
bool LoopbackTransport::advance_receive(Posted& receive) {
  Mailbox& box = fabric_->box(receive.peer, rank_);
  if (receive.copied == 0 && fabric_->delays() == nullptr) {
    const uint64_t arrivals = box.arrivals.load(std::memory_order_acquire);
    if (std::exchange(receive.seen_arrivals, arrivals) == arrivals) return false;
  }
  const std::lock_guard lock(box.mutex);
  const auto it = std::find_if(box.messages.begin(), box.messages.end(), [&](const Envelope& e) {
    return receive.copied > 0 ? e.id == receive.envelope : !e.matched && e.tag == receive.tag && visible(e);
  });
  if (it == box.messages.end()) {
    if (receive.copied == 0) return false;
    retire(receive,
           Status::error(Code::kPeerFailed,
                         cat("rank ", receive.peer, " cancelled a message after this rank had received ",
                             receive.copied, " bytes of it"),
                         Evidence::kConnection)
               .with_ranks({receive.peer}));
    return true;
  }
  if (accept(receive, *it)) remove(box, it);
  return true;
}

bool LoopbackTransport::accept(Posted& receive, Envelope& envelope) {
  Status status;
  if (envelope.size > receive.capacity) {
    status = Status::error(Code::kMismatch, cat("rank ", receive.peer, " sent a message of ", envelope.size,
                                                " bytes, expected at most ", receive.capacity,
                                                ": the ranks called with different sizes"));
  } else if (envelope.size > 0) {
    const std::byte* const from = envelope.data != nullptr ? envelope.data : envelope.eager.data();
    const uint64_t piece = std::min(kPieceBytes, envelope.size - receive.copied);
    std::memcpy(receive.data + receive.copied, from + receive.copied, piece);
    receive.copied += piece;
    receive.envelope = envelope.id;
    envelope.matched = true;
    if (receive.copied < envelope.size) return false;
  }
  receive.message->peer_descriptor = envelope.descriptor;
  receive.message->waits = envelope.waits;
  receive.message->received_bytes = receive.copied;
  bytes_received_.fetch_add(receive.copied, std::memory_order_relaxed);
  if (envelope.taken != nullptr) envelope.taken->store(true, std::memory_order_release);
  retire(receive, std::move(status));
  return true;
}

void LoopbackTransport::cancel(Message* message) {
  auto* const posted = static_cast<Posted*>(message->impl);
  if (posted == nullptr) return;
  if (posted->is_send) {
    Mailbox& box = fabric_->box(rank_, posted->peer);
    const std::lock_guard lock(box.mutex);
    const auto it = std::find_if(box.messages.begin(), box.messages.end(),
                                 [&](const Envelope& e) { return e.taken == &posted->taken; });
    if (it != box.messages.end()) remove(box, it);
  }
  // A partly received message stays with its sender, which learns of the failure in other ways.
  retire(*posted, guarded([&] {
    return Status::error(Code::kCancelled,
                         cat(posted->is_send ? "the send to rank " : "the receive from rank ", posted->peer,
                             " was cancelled before it completed"));
  }));
}

bool LoopbackTransport::peek(int peer, uint32_t lane, uint64_t slot, Descriptor* descriptor) {
  Mailbox& box = fabric_->box(peer, rank_);
  const std::lock_guard lock(box.mutex);
  for (const Envelope& envelope : box.messages) {
    if (envelope.matched || envelope.tag.lane != lane || envelope.tag.slot != slot) continue;
    if (!visible(envelope)) continue;
    *descriptor = envelope.descriptor;
    return true;
  }
  return false;
}

TransportCounters LoopbackTransport::counters() const {
  TransportCounters counters;
  counters.bytes_sent = bytes_sent_.load(std::memory_order_relaxed);
  counters.bytes_received = bytes_received_.load(std::memory_order_relaxed);
  return counters;
}

}  // namespace weft::loopback
