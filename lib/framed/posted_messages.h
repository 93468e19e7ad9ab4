// The entries of posted sends and receives, in the order of their posting for each peer. Reuses entries, so
// that posting allocates nothing in a steady state. Owned by FramedTransport. Threads: guarded by the
// progress lock.
#pragma once

#include <cstdint>
#include <list>

#include "base/status.h"
#include "framed/peer.h"
#include "transport/transport.h"

namespace weft::framed {

class PostedMessages {
 public:
  // first_name: the first message gets the name after it.
  explicit PostedMessages(uint64_t first_name) : last_name_(first_name) {}
  // Adds an entry for a message and gives it a name.
  Posted& post(Peer& peer, Message* message);
  // Completes a message with `status` and frees its entry.
  void retire(Posted& posted, Status status);
  // Return the entry of the peer that a frame is for; null if there is none:
  // the first receive of a tag that no message has matched yet,
  static Posted* unmatched_receive(Peer& peer, const MessageTag& tag);
  // the receive whose message the fragments of `name` continue,
  static Posted* matched_receive(Peer& peer, bool offered, uint64_t name);
  // and the send of that name, if the peer has not accepted its offer yet.
  static Posted* offered_send(Peer& peer, uint64_t name);
  // Calls visit(posted) for each entry of the peer. visit may retire any entry, because Link::send may
  // complete any message.
  template <class Visit>
  void each(Peer& peer, Visit&& visit) {
    next_ = peer.posted.empty() ? nullptr : &peer.posted.front();
    while (next_ != nullptr) {
      Posted& posted = *next_;
      next_ = following(posted);
      visit(posted);
    }
  }

 private:
  static Posted* following(const Posted& posted);

  std::list<Posted> unused_;
  uint64_t last_name_;
  Posted* next_ = nullptr;  // the entry that each() visits next
};

}  // namespace weft::framed
