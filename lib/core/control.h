// The control channel of a comm, apart from its data path: who is alive, who failed and why, and small
// messages between members. Over sockets (lib/rendezvous/mesh), or in one process (backends/loopback).
#pragma once

#include "base/buffer.h"
#include "base/status.h"

namespace weft {

// Called by a Control, one call at a time. Must not block.
class ControlListener {
 public:
  virtual ~ControlListener() = default;
  // The peer is gone without a farewell; `why` has code kPeerFailed, the rank and the evidence.
  virtual void on_peer_lost(int rank, const Status& why) = 0;
  // The peer said farewell: it will take part in no further operation.
  virtual void on_peer_left(int rank) = 0;
  virtual void on_message(int rank, ByteView message) = 0;
  // This process could not receive something that was sent to it, because it has no memory, say.
  virtual void on_broken(const Status& /*why*/) {}
};

class Control {
 public:
  virtual ~Control() = default;
  // From here on the listener is called; messages that came before are delivered first.
  virtual void start(ControlListener* listener) = 0;
  // Best effort and never blocking: a message to a dead peer is dropped. At most kMaxMessage bytes. Any
  // thread.
  virtual void send(int rank, ByteView message) = 0;
  // Deliver what has arrived, where there is no thread that does (simulation). Any thread, cheap when there
  // is nothing.
  virtual void poll() {}
  // Say farewell to all. Any thread.
  virtual void leave() = 0;
  // Stop calling the listener: on return no call is running, unless made from a listener's call. Any thread.
  virtual void stop() = 0;

  static constexpr size_t kMaxMessage = 1u << 20;
};

}  // namespace weft
