#include "tagged/matching.h"

#include <algorithm>

namespace weft::tagged {
namespace {

bool takes(const Operation& receive, int source, uint64_t tag) {
  return (receive.peer() == kAnySource || receive.peer() == source) &&
         (receive.tag == kAnyTag || receive.tag == tag);
}

}  // namespace

bool Matching::post(Operation& receive, Unexpected* message) {
  const auto first = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& one) {
    return takes(receive, one.source, one.header.tag);
  });
  if (first != unexpected_.end()) {
    *message = std::move(*first);
    unexpected_.erase(first);
    return true;
  }
  // A receive whose sender has given up returns to its place among the others.
  const auto place = std::find_if(posted_.rbegin(), posted_.rend(),
                                  [&](const Operation* posted) { return posted->order < receive.order; });
  posted_.insert(place.base(), &receive);
  receive.state = Operation::State::kPosted;
  return false;
}

Operation* Matching::match(int source, uint64_t tag) {
  const auto first = std::find_if(posted_.begin(), posted_.end(),
                                  [&](const Operation* receive) { return takes(*receive, source, tag); });
  if (first == posted_.end()) return nullptr;
  Operation* const receive = *first;
  posted_.erase(first);
  return receive;
}

void Matching::forget_send(const Operation& send) {
  unexpected_.remove_if([&](const Unexpected& message) { return message.send == &send; });
}

bool Matching::forget_offer(int source, uint64_t id) {
  const auto is_it = [&](const Unexpected& message) {
    return message.source == source && message.header.kind == FrameOf::kOffer && message.header.id == id;
  };
  return unexpected_.remove_if(is_it) > 0;
}

void Matching::forget_offers(int source) {
  unexpected_.remove_if([&](const Unexpected& message) {
    return message.source == source && message.header.kind == FrameOf::kOffer;
  });
}

}  // namespace weft::tagged
