// The interface of a network that FramedTransport (transport.h) turns into a Transport. A link delivers
// frames between two ranks in order. A frame has a head and at most one piece of data. FramedTransport adds
// matching, flow control, long messages and cancellation. Backends implement it.
//
// Threads: every function is called with the progress lock held. A link reports events only from inside its
// own functions, so under the same lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"

namespace weft {
class Offload;
}

namespace weft::framed {

class Link;

// The state of a frame that FramedTransport passes to a link. The link may read the frame's memory while
// `busy` is true. The link alone uses `peer` and `link`.
struct InFlightFrame {
  bool busy = false;
  int peer = 0;
  Link* link = nullptr;
};

// The events that a link reports, from inside open, connect, send, progress, settled and close.
class LinkEvents {
 public:
  // Reports a received frame, whose sender is not authenticated yet. The link owns the bytes; they are valid
  // until this returns.
  virtual void on_frame(ByteView head, ByteView data) = 0;
  // Reports that the link no longer reads an in-flight frame. An error status means that the frame was not
  // sent and that the peer is lost.
  virtual void sent(InFlightFrame& frame, const Status& status) = 0;
  // Reports that the connection to a peer is lost in both directions.
  virtual void lost(int peer, Status why) = 0;

 protected:
  ~LinkEvents() = default;
};

// Sizes of the frames and messages to a peer.
struct LinkLimits {
  uint64_t piece_bytes = 0;  // largest data of one frame
  uint64_t eager_bytes = 0;  // largest message that is sent without an offer
};

class Link {
 public:
  // Destroys the link in bounded time. On return the link reports no event and reads no in-flight frame.
  virtual ~Link() = default;
  // Opens the link; called before all other functions. *address: the address at which the other ranks reach
  // this one, 1 to kMostAddressBytes bytes. `events` outlives the link.
  virtual Status open(LinkEvents& events, Bytes* address) = 0;
  // Returns true if the link needs join(). All ranks return the same value.
  virtual bool joins() const { return false; }
  // Sets up state that all ranks share. Collective; called before the first connect, after the ranks have
  // agreed to call it. addresses: by rank.
  virtual Status join(const std::vector<ByteView>& /*addresses*/) { return {}; }
  // Connects to a peer and sets *limits. Called once for each peer. The lower rank of a pair connects first;
  // the higher rank connects after it has received the lower rank's kHello.
  virtual Status connect(int peer, ByteView address, LinkLimits* limits) = 0;
  // Sends a frame; never blocks. head: at most kMostHeadBytes (wire.h). data: at most piece_bytes. Returns
  // true if head and data are in flight: the link has set frame.busy, and reads them until it reports
  // sent(frame). Returns false if the link does not read them any more: it has sent or copied them, or the
  // peer is lost and the link has reported lost().
  virtual bool send(int peer, ByteView head, ByteView data, InFlightFrame& frame) = 0;
  // Does a bounded amount of work. Returns true if it did any.
  virtual bool progress() = 0;
  // Closes the connection to a peer. The link reports sent() for the peer's in-flight frames, from inside
  // this call or from later calls of progress().
  virtual void close(int peer) = 0;
  // Ends all connections immediately. Called if in-flight frames are not completed in time. On return the
  // link reads no frame any more.
  virtual void stop() = 0;
  // Called by Transport::settled and Transport::offload, which describe them.
  virtual bool settled() = 0;
  virtual Offload* offload() { return nullptr; }
  // Returns the networks that frames to a peer use, as text for the user: "tcp/eth0".
  virtual std::string path(int peer) const = 0;
  // Returns the library that sends the frames, as text for the user: "UCX 1.13.1".
  virtual std::string about() const = 0;
  virtual const char* name() const = 0;
};

}  // namespace weft::framed
