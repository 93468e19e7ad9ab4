#include "tagged/own.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace weft::tagged {
namespace {

constexpr uint64_t kOwnCopyBytes = uint64_t{1} << 20;  // that one poll copies

}  // namespace

void OwnMessages::send(Operation& send) {
  if (Operation* const receive = matching_.match(rank_, send.tag); receive != nullptr)
    return join(send, *receive);
  const Header header = send.header();
  if (header.bytes <= kEagerMessageBytes && window_ + eager_cost(header.bytes) <= kEagerWindowBytes) {
    const std::byte* const data = send.request->args.src;
    matching_.keep({rank_, header, {data, data + header.bytes}, nullptr});
    window_ += eager_cost(header.bytes);
    return owner_.complete(send, {});
  }
  matching_.keep({rank_, header, {}, &send});
  send.state = Operation::State::kOffered;
}

void OwnMessages::deliver(Operation& receive, const Unexpected& message) {
  if (message.send != nullptr) return join(*message.send, receive);
  window_ -= eager_cost(message.header.bytes);
  Status taken = take(receive, rank_, rank_, message.header);
  if (taken.ok() && !message.data.empty())
    std::memcpy(receive.request->args.dst, message.data.data(), message.data.size());
  owner_.complete(receive, std::move(taken));
}

void OwnMessages::join(Operation& send, Operation& receive) {
  if (const Status taken = take(receive, rank_, rank_, send.header()); !taken.ok()) {
    owner_.complete(send, taken);
    return owner_.complete(receive, taken);
  }
  send.state = receive.state = Operation::State::kStreaming;
  receive.source = rank_;
  copies_.push_back({&send, &receive});
}

bool OwnMessages::poll() {
  if (copies_.empty()) return false;
  const Copy copy = copies_.front();
  Operation& send = *copy.send;
  const uint64_t part = std::min(kOwnCopyBytes, send.bytes() - send.moved);
  if (part > 0)
    std::memcpy(copy.receive->request->args.dst + send.moved, send.request->args.src + send.moved, part);
  send.moved += part;
  if (send.moved < send.bytes()) return true;
  copies_.pop_front();
  owner_.complete(send, {});
  owner_.complete(*copy.receive, {});
  return true;
}

bool OwnMessages::end(Operation& operation, const Status& why) {
  const auto it = std::find_if(copies_.begin(), copies_.end(), [&](const Copy& copy) {
    return copy.send == &operation || copy.receive == &operation;
  });
  if (it != copies_.end()) {
    const Copy copy = *it;
    copies_.erase(it);
    const bool sends = operation.sends();
    const Status received =
        sends ? withdrawn(rank_, copy.send->tag, copy.send->moved, copy.send->bytes()) : why;
    owner_.complete(*copy.send, sends ? why : Status());
    owner_.complete(*copy.receive, received);
    return true;
  }
  if (!operation.sends() || operation.peer() != rank_) return false;
  matching_.forget_send(operation);
  owner_.complete(operation, why);
  return true;
}

}  // namespace weft::tagged
