// What a network has to do so that FramedTransport (transport.h) makes a Transport of it: carry frames
// between ranks, in order, each at most a piece. Matching, flow control, long messages and taking back are
// done above. Implemented by backends.
//
// Threads: everything with the engine's drive lock held. A link calls back from inside its own calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"

namespace weft {
class Offload;
}

namespace weft::frames {

class Link;

// A frame that the link may still read.
struct Lent {
  bool busy = false;
  int peer = 0;  // these two are for the link, while it is busy
  Link* link = nullptr;
};

// What a link tells, from inside open, connect, send, progress, settled and close.
class LinkEvents {
 public:
  // A frame, from whoever sent it; the bytes are the link's and go when this returns.
  virtual void heard(ByteView head, ByteView data) = 0;
  // A frame that was lent is not read any more. An error says that it did not go, and that the peer is lost.
  virtual void sent(Lent& lent, const Status& status) = 0;
  // Nothing reaches this peer, or comes from it, any more.
  virtual void lost(int peer, Status why) = 0;

 protected:
  ~LinkEvents() = default;
};

// How a peer's frames are best cut.
struct LinkLimits {
  uint64_t piece_bytes = 0;  // data of one frame, at most
  uint64_t eager_bytes = 0;  // up to here a message is sent without asking first
};

class Link {
 public:
  // Nothing is called back and nothing is read any more when it returns; bounded.
  virtual ~Link() = default;
  // First. *address: where the other ranks reach this one, 1 to kMostAddressBytes bytes.
  virtual Status open(LinkEvents& events, Bytes* address) = 0;
  // Whether join is to be called; the same on all ranks.
  virtual bool joins() const { return false; }
  // Collective, before the first connect: all addresses, by rank. The ranks have just agreed to call it.
  virtual Status join(const std::vector<ByteView>& /*addresses*/) { return {}; }
  // Once for each peer. Of two ranks the lower one connects first; the other one does when it has heard from
  // it.
  virtual Status connect(int peer, ByteView address, LinkLimits* limits) = 0;
  // Never blocks; head has at most kMostHeadBytes (wire.h), data a piece. True: head and data are lent until
  // sent(lent), which has lent.busy set meanwhile. False: they are not, because they are on their way, or
  // because the peer was lost, as lost() has said.
  virtual bool send(int peer, ByteView head, ByteView data, Lent& lent) = 0;
  // A bounded amount of work; true if there was any.
  virtual bool progress() = 0;
  // Give the connection up: what is lent comes back in the next calls of progress().
  virtual void close(int peer) = 0;
  // Give everything up, because what is lent does not come back: nothing is read any more when it returns.
  virtual void stop() = 0;
  // See Transport.
  virtual bool settled() = 0;
  virtual Offload* offload() { return nullptr; }
  // What frames to this peer travel on, "tcp/eth0", and what carries them, "UCX 1.13.1".
  virtual std::string path(int peer) const = 0;
  virtual std::string about() const = 0;
  virtual const char* name() const = 0;
};

}  // namespace weft::frames
