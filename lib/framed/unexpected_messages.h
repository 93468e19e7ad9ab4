// The messages that arrived before their receives were posted: eager messages, of which it retains up to
// kWindowBytes from each rank, and offers. Reuses the memory of messages that were received. Owned by
// FramedTransport. Threads: guarded by the progress lock.
#pragma once

#include <cstdint>
#include <list>

#include "base/buffer.h"
#include "framed/peer.h"
#include "framed/wire.h"

namespace weft::framed {

// Most eager bytes that a receiver retains for one sender. A message counts as its data and kMessageCost
// bytes.
inline constexpr uint64_t kWindowBytes = uint64_t{2} << 20;
inline constexpr uint64_t kMessageCost = 128;
inline uint64_t cost(uint64_t size) {
  return size + kMessageCost;
}

class UnexpectedMessages {
 public:
  // Retains a message of the peer. Returns false if the sender exceeds its window or the number of messages
  // that it may have here.
  bool keep(Peer& peer, const Header& header, ByteView data);
  // Adds a fragment's data to the eager message that it belongs to; discards it if there is none. Returns
  // false if it does not continue the message.
  static bool append(Peer& peer, const Fragment& fragment, ByteView data);
  // Finds the peer's first message of a slot, as Transport::peek.
  static bool peek(const Peer& peer, uint32_t lane, uint64_t slot, Descriptor* descriptor);
  // Calls take(header, data) with the peer's first message that has the tag, if there is one. The message
  // leaves the window before that, and is dropped after it.
  template <class Take>
  void receive(Peer& peer, const MessageTag& tag, Take&& take) {
    if (peer.arrived.empty()) return;
    const auto found = find(peer, tag);
    if (found == peer.arrived.end()) return;
    if (found->header.offered == 0) peer.arrived_bytes -= cost(found->header.size);
    take(found->header, ByteView(found->data));
    drop(peer, found);
  }

 private:
  static std::list<Arrived>::iterator find(Peer& peer, const MessageTag& tag);
  void drop(Peer& peer, std::list<Arrived>::iterator message);

  std::list<Arrived> unused_;  // entries for later messages, with the memory of their data
  uint64_t idle_bytes_ = 0;    // capacity of that memory
};

}  // namespace weft::framed
