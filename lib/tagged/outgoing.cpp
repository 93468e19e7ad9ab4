#include "tagged/outgoing.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace weft::tagged {

void Outgoing::send(Operation& send) {
  if (!fits(send)) {
    messages_.push_back({&send, {}, {}});
    send.state = Operation::State::kWaiting;
    return;
  }
  if (busy()) {
    messages_.push_back(copy(send));
  } else {
    // The usual case allocates nothing.
    const Header header = send.header();
    const std::byte* const source = send.request->args.src;
    frame_.header = header;
    chunk_ = nullptr;
    data_ = nullptr;
    if (header.bytes > kInlineMessageBytes) {
      copy_.assign(source, source + header.bytes);
      data_ = copy_.data();
    } else if (header.bytes > 0) {
      std::memcpy(frame_.data, source, header.bytes);
    }
    write_frame();
  }
  credit_ -= eager_cost(send.bytes());
  owner_.complete(send, {});
}

bool Outgoing::fits(const Operation& send) const {
  return send.bytes() <= kEagerMessageBytes && eager_cost(send.bytes()) <= credit_;
}

Outgoing::Message Outgoing::copy(const Operation& send) {
  const std::byte* const source = send.request->args.src;
  return {nullptr, send.header(), {source, source + send.bytes()}};
}

// Copies the messages that wait and fit into the window now, and completes their sends.
void Outgoing::admit() {
  for (Message& message : messages_) {
    if (message.send == nullptr || !fits(*message.send)) continue;
    Operation& send = *message.send;
    message = copy(send);
    credit_ -= eager_cost(send.bytes());
    owner_.complete(send, {});
  }
}

bool Outgoing::owes() const {
  return !answers_.empty() || (writing_ != Writing::kNothing && chunk_ == nullptr) ||
         std::any_of(messages_.begin(), messages_.end(),
                     [](const Message& message) { return message.send == nullptr; });
}

Status Outgoing::progress(bool* advanced) {
  for (int i = 0; i < kFramesPerPoll; i++) {
    if (writing_ == Writing::kNothing) {
      if (!next_frame()) return {};
      write_frame();
    }
    const Poll polled = lane_->poll();
    *advanced |= polled == Poll::kFinished || polled == Poll::kAdvanced;
    if (polled != Poll::kFinished) return {};
    WEFT_TRY(lane_->result());
    if (writing_ == Writing::kFrame && data_ != nullptr) {
      write(data_, frame_.header.bytes);
      writing_ = Writing::kData;
      continue;
    }
    writing_ = Writing::kNothing;
    written();
  }
  return {};
}

void Outgoing::write_frame() {
  write(reinterpret_cast<const std::byte*>(&frame_), sizeof frame_);
  writing_ = Writing::kFrame;
}

void Outgoing::write(const std::byte* data, uint64_t bytes) {
  CollectiveArgs args;
  args.coll = Coll::kSend;
  args.peer = peer_;
  args.count = bytes;
  args.src = data;
  lane_->start(args, slot_++);
}

// Composes the next frame. Answers go first: the other rank waits for them.
bool Outgoing::next_frame() {
  data_ = nullptr;
  chunk_ = nullptr;
  if (!answers_.empty()) {
    frame_.header = answers_.front();
    answers_.pop_front();
    return true;
  }
  if (!(chunk_next_ && !streaming_.empty()) && next_message()) {
    chunk_next_ = true;
    return true;
  }
  if (streaming_.empty()) return false;
  chunk_next_ = false;
  next_chunk();
  return true;
}

// Sends or offers the next message. Returns false if there is none, or too many were offered.
bool Outgoing::next_message() {
  if (messages_.empty()) return false;
  Message& message = messages_.front();
  Header& header = frame_.header;
  if (message.send == nullptr) {
    header = message.header;
    if (header.bytes > kInlineMessageBytes) {
      copy_ = std::move(message.data);
      data_ = copy_.data();
    } else {
      std::copy(message.data.begin(), message.data.end(), frame_.data);
    }
    messages_.pop_front();
    return true;
  }
  if (offered_.size() + streaming_.size() >= kMostOffers) return false;
  Operation& send = *message.send;
  header = send.header();
  header.kind = FrameOf::kOffer;
  header.id = send.id = ++last_id_;
  offered_.emplace(send.id, &send);
  send.state = Operation::State::kOffered;
  messages_.pop_front();
  return true;
}

void Outgoing::next_chunk() {
  Operation& send = *streaming_.front();
  chunk_ = &send;
  data_ = send.request->args.src + send.moved;
  frame_.header = {.kind = FrameOf::kChunk,
                   .id = send.id,
                   .bytes = std::min(kMessageChunkBytes, send.bytes() - send.moved)};
}

// Handles the end of a frame and of the data that follows it.
void Outgoing::written() {
  if (chunk_ == nullptr) return;
  Operation& send = *std::exchange(chunk_, nullptr);
  send.moved += frame_.header.bytes;
  streaming_.pop_front();
  if (send.moved == send.bytes()) return owner_.complete(send, {});
  if (send.ended.ok()) return streaming_.push_back(&send);
  answer({.kind = FrameOf::kWithdraw, .id = send.id});
  owner_.complete(send, send.ended);
}

// An answer to an offer that this rank has withdrawn meanwhile is ignored.
bool Outgoing::answered(const Header& header) {
  if (header.kind == FrameOf::kCredit) {
    if (header.bytes > kEagerWindowBytes - credit_) return false;
    credit_ += header.bytes;
    admit();
    return true;
  }
  if (header.id == 0 || header.id > last_id_) return false;
  const auto it = offered_.find(header.id);
  if (it == offered_.end()) return true;
  Operation& send = *it->second;
  offered_.erase(it);
  if (header.kind == FrameOf::kRefuse) {
    owner_.complete(send, mismatch(rank_, send.tag, {rank_, send.dtype(), send.bytes()},
                                   {peer_, header.dtype, header.bytes}));
  } else if (send.bytes() == 0) {
    owner_.complete(send, {});
  } else {
    send.state = Operation::State::kStreaming;
    streaming_.push_back(&send);
  }
  return true;
}

void Outgoing::forget(const Operation& send) {
  std::erase_if(messages_, [&](const Message& message) { return message.send == &send; });
  const bool offered = offered_.erase(send.id) > 0;
  if (offered || std::erase(streaming_, &send) > 0) answer({.kind = FrameOf::kWithdraw, .id = send.id});
}

void Outgoing::abandon() {
  lane_->abandon();
  writing_ = Writing::kNothing;
  chunk_ = nullptr;
  answers_.clear();
  messages_.clear();
  offered_.clear();
  streaming_.clear();
}

}  // namespace weft::tagged
