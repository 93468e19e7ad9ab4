#include "framed/posted_messages.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weft::framed {
namespace {

template <class Matches>
Posted* first_of(Peer& peer, Matches&& matches) {
  const auto found = std::find_if(peer.posted.begin(), peer.posted.end(), matches);
  return found == peer.posted.end() ? nullptr : &*found;
}

}  // namespace

Posted& PostedMessages::post(Peer& peer, Message* message) {
  if (unused_.empty()) unused_.emplace_back();
  peer.posted.splice(peer.posted.end(), unused_, unused_.begin());
  Posted& posted = peer.posted.back();
  posted.peer = &peer;
  posted.message = message;
  posted.going = false;
  posted.name = ++last_name_;
  posted.moved = 0;
  posted.in_flight = 0;
  posted.refused = false;
  posted.first.posted = &posted;
  for (Flight<Fragment>& part : posted.parts) part.posted = &posted;
  posted.self = std::prev(peer.posted.end());
  message->impl = &posted;
  return posted;
}

// Returns the next entry of the peer's list; null at its end.
Posted* PostedMessages::following(const Posted& posted) {
  const auto next = std::next(posted.self);
  return next == posted.peer->posted.end() ? nullptr : &*next;
}

Posted* PostedMessages::unmatched_receive(Peer& peer, const MessageTag& tag) {
  return first_of(
      peer, [&](const Posted& posted) { return !posted.is_send && !posted.going && posted.tag == tag; });
}

Posted* PostedMessages::matched_receive(Peer& peer, bool offered, uint64_t name) {
  return first_of(peer, [&](const Posted& posted) {
    return !posted.is_send && posted.going && posted.offered == offered &&
           name == (offered ? posted.name : posted.other_name);
  });
}

Posted* PostedMessages::offered_send(Peer& peer, uint64_t name) {
  return first_of(
      peer, [&](const Posted& posted) { return posted.is_send && !posted.going && posted.name == name; });
}

void PostedMessages::retire(Posted& posted, Status status) {
  if (&posted == next_) next_ = following(posted);
  Message& message = *std::exchange(posted.message, nullptr);
  message.status = std::move(status);
  message.impl = nullptr;
  message.done = true;
  unused_.splice(unused_.end(), posted.peer->posted, posted.self);
}

}  // namespace weft::framed
