#include "framed/unexpected_messages.h"

#include <algorithm>
#include <vector>

namespace weft::framed {
namespace {

// Most unexpected messages of one rank. A lane has only a few, so a sender that exceeds this is faulty.
constexpr size_t kMostArrived = 65536;
// Most memory that is retained for reuse by later unexpected messages of all ranks, bytes.
constexpr uint64_t kMostIdleBytes = uint64_t{4} << 20;

}  // namespace

// Uses free memory that is large enough if there is any.
bool UnexpectedMessages::keep(Peer& peer, const Header& header, ByteView data) {
  const bool eager = header.offered == 0;
  if (peer.arrived.size() >= kMostArrived) return false;
  if (eager && (header.size > kWindowBytes || peer.arrived_bytes + cost(header.size) > kWindowBytes)) {
    return false;
  }
  if (unused_.empty()) unused_.emplace_back();
  auto room = std::find_if(unused_.begin(), unused_.end(), [&](const Arrived& unused) {
    return !eager || unused.data.capacity() >= header.size;
  });
  if (room == unused_.end()) room = unused_.begin();
  idle_bytes_ -= room->data.capacity();
  peer.arrived.splice(peer.arrived.end(), unused_, room);
  Arrived& arrived = peer.arrived.back();
  arrived.header = header;
  arrived.data.clear();
  if (!eager) return true;
  peer.arrived_bytes += cost(header.size);
  arrived.data.reserve(header.size);
  arrived.data.insert(arrived.data.end(), data.begin(), data.end());
  return true;
}

bool UnexpectedMessages::append(Peer& peer, const Fragment& fragment, ByteView data) {
  const auto kept = std::find_if(peer.arrived.begin(), peer.arrived.end(), [&](const Arrived& arrived) {
    return arrived.header.offered == 0 && arrived.header.name == fragment.name;
  });
  if (kept == peer.arrived.end()) return true;
  if (fragment.offset != kept->data.size() || data.size() > kept->header.size - kept->data.size())
    return false;
  kept->data.insert(kept->data.end(), data.begin(), data.end());
  return true;
}

bool UnexpectedMessages::peek(const Peer& peer, uint32_t lane, uint64_t slot, Descriptor* descriptor) {
  for (const Arrived& arrived : peer.arrived) {
    if (arrived.header.lane != lane || arrived.header.slot != slot) continue;
    *descriptor = arrived.header.descriptor;
    return true;
  }
  return false;
}

std::list<Arrived>::iterator UnexpectedMessages::find(Peer& peer, const MessageTag& tag) {
  return std::find_if(peer.arrived.begin(), peer.arrived.end(),
                      [&](const Arrived& arrived) { return arrived.header.tag() == tag; });
}

void UnexpectedMessages::drop(Peer& peer, std::list<Arrived>::iterator message) {
  if (idle_bytes_ + message->data.capacity() > kMostIdleBytes) std::vector<std::byte>().swap(message->data);
  idle_bytes_ += message->data.capacity();
  unused_.splice(unused_.end(), peer.arrived, message);
}

}  // namespace weft::framed
