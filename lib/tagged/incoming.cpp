#include "tagged/incoming.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace weft::tagged {

Status Incoming::progress(bool* advanced) {
  for (int i = 0; i < kFramesPerPoll; i++) {
    if (reading_ == Reading::kNothing) {
      if (!busy() && !owner_.listens(peer_)) return {};
      read(reinterpret_cast<std::byte*>(&frame_), sizeof frame_);
      reading_ = Reading::kFrame;
    }
    const Poll polled = lane_->poll();
    *advanced |= polled == Poll::kFinished || polled == Poll::kAdvanced;
    if (polled != Poll::kFinished) return {};
    WEFT_TRY(lane_->result());
    if (std::exchange(reading_, Reading::kNothing) == Reading::kFrame) {
      if (!valid(frame_.header) || !handle(frame_.header)) return invalid();
    } else {
      filling_ != nullptr ? arrived_chunk() : arrived();
    }
  }
  return {};
}

void Incoming::read(std::byte* data, uint64_t bytes) {
  CollectiveArgs args;
  args.coll = Coll::kRecv;
  args.peer = peer_;
  args.count = bytes;
  args.dst = data;
  lane_->start(args, slot_++);
}

// Handles a valid frame. Returns false if it does not follow from the frames before it.
bool Incoming::handle(const Header& header) {
  switch (header.kind) {
    case FrameOf::kEager:
      return handle_eager(header);
    case FrameOf::kOffer:
      return handle_offer(header);
    case FrameOf::kChunk:
      return handle_chunk(header);
    case FrameOf::kWithdraw:
      return handle_withdrawal(header.id);
    default:
      return outgoing_.answered(header);
  }
}

bool Incoming::handle_eager(const Header& header) {
  window_ += eager_cost(header.bytes);
  if (window_ > kEagerWindowBytes) return false;
  if (header.bytes <= kInlineMessageBytes) {
    arrived();
    return true;
  }
  copy_.resize(kEagerMessageBytes);
  filling_ = nullptr;
  read(copy_.data(), header.bytes);
  reading_ = Reading::kData;
  return true;
}

// Handles an eager message whose data is complete.
void Incoming::arrived() {
  const Header& header = frame_.header;
  const std::byte* const data = header.bytes <= kInlineMessageBytes ? frame_.data : copy_.data();
  if (Operation* const receive = matching_.match(peer_, header.tag); receive != nullptr) {
    deliver(*receive, header, data);
  } else {
    matching_.keep({peer_, header, {data, data + header.bytes}, nullptr});
  }
}

bool Incoming::handle_offer(const Header& header) {
  if (header.id != ++last_offer_ || ++offers_ > kMostOffers) return false;
  if (Operation* const receive = matching_.match(peer_, header.tag); receive != nullptr) {
    accept(*receive, header);
  } else {
    matching_.keep({peer_, header, {}, nullptr});
  }
  return true;
}

void Incoming::deliver(Operation& receive, const Unexpected& message) {
  if (message.header.kind == FrameOf::kOffer) return accept(receive, message.header);
  deliver(receive, message.header, message.data.data());
}

// Completes a receive with an eager message, whose part of the window is free then.
void Incoming::deliver(Operation& receive, const Header& header, const std::byte* data) {
  owed_ += eager_cost(header.bytes);
  if (owed_ >= kEagerWindowBytes / 2) {
    window_ -= owed_;
    outgoing_.answer({.kind = FrameOf::kCredit, .bytes = std::exchange(owed_, 0)});
  }
  Status taken = take(receive, rank_, peer_, header);
  if (taken.ok() && header.bytes > 0) std::memcpy(receive.request->args.dst, data, header.bytes);
  owner_.complete(receive, std::move(taken));
}

// Answers an offer that a receive takes.
void Incoming::accept(Operation& receive, const Header& offer) {
  Status taken = take(receive, rank_, peer_, offer);
  outgoing_.answer({.kind = taken.ok() ? FrameOf::kAccept : FrameOf::kRefuse,
                    .dtype = receive.dtype(),
                    .id = offer.id,
                    .bytes = taken.ok() ? 0 : receive.bytes()});
  if (taken.ok() && offer.bytes > 0) {
    receive.state = Operation::State::kStreaming;
    receive.source = peer_;
    accepted_.push_back({offer, 0, &receive});
    return;
  }
  offers_--;
  owner_.complete(receive, std::move(taken));
}

std::list<Incoming::Accepted>::iterator Incoming::accepted(uint64_t id) {
  return std::find_if(accepted_.begin(), accepted_.end(),
                      [&](const Accepted& accepted) { return accepted.header.id == id; });
}

bool Incoming::handle_chunk(const Header& header) {
  const auto it = accepted(header.id);
  if (it == accepted_.end()) return false;
  if (header.bytes != std::min(kMessageChunkBytes, it->header.bytes - it->received)) return false;
  if (it->receive == nullptr) discarded_.resize(kMessageChunkBytes);
  filling_ = &*it;
  read(it->receive == nullptr ? discarded_.data() : it->receive->request->args.dst + it->received,
       header.bytes);
  reading_ = Reading::kData;
  return true;
}

void Incoming::arrived_chunk() {
  Accepted& accepted = *std::exchange(filling_, nullptr);
  accepted.received += frame_.header.bytes;
  const bool whole = accepted.received == accepted.header.bytes;
  Operation* const receive = accepted.receive;
  const bool ends = receive != nullptr && (whole || !receive->ended.ok());
  if (ends) accepted.receive = nullptr;
  if (whole) {
    accepted_.remove_if([&](const Accepted& other) { return &other == &accepted; });
    offers_--;
  }
  if (ends) owner_.complete(*receive, whole ? Status() : receive->ended);
}

// Ignores an offer that this rank has refused meanwhile.
bool Incoming::handle_withdrawal(uint64_t id) {
  if (id > last_offer_) return false;
  if (matching_.forget_offer(peer_, id)) {
    offers_--;
    return true;
  }
  const auto it = accepted(id);
  if (it == accepted_.end()) return true;
  const Accepted given_up = *it;
  accepted_.erase(it);
  offers_--;
  Operation* const receive = given_up.receive;
  if (receive == nullptr) return true;
  if (!receive->cancelled.ok()) {
    owner_.complete(*receive, receive->cancelled);
  } else if (given_up.received == 0) {
    owner_.post(*receive);
  } else {
    owner_.complete(*receive,
                    withdrawn(peer_, given_up.header.tag, given_up.received, given_up.header.bytes));
  }
  return true;
}

void Incoming::forget(const Operation& receive) {
  for (Accepted& accepted : accepted_) {
    if (accepted.receive == &receive) accepted.receive = nullptr;
  }
}

void Incoming::abandon() {
  lane_->abandon();
  reading_ = Reading::kNothing;
  filling_ = nullptr;
  accepted_.clear();
}

Status Incoming::invalid() const {
  const Header& header = frame_.header;
  return Status::error(Code::kPeerFailed,
                       cat("rank ", peer_, " sent an invalid frame about tagged messages: kind ",
                           static_cast<int>(header.kind), ", message ", header.id, ", dtype ",
                           static_cast<int>(header.dtype), ", ", header.bytes, " bytes"),
                       Evidence::kDescriptor)
      .with_ranks({peer_});
}

}  // namespace weft::tagged
