// The control channel of a communicator, separate from its data path: liveness, failures and their reasons,
// and small messages between members. Over sockets (lib/rendezvous/mesh), or in one process
// (backends/loopback).
#pragma once

#include "base/buffer.h"
#include "base/status.h"

namespace weft {

// Receives the events of a Control. Called one call at a time. Must not block.
class ControlListener {
 public:
  virtual ~ControlListener() = default;
  // The peer is gone without a goodbye. `why` has code kPeerFailed, the rank and the evidence.
  virtual void on_peer_lost(int rank, const Status& why) = 0;
  // The peer sent its goodbye: it takes part in no further operation.
  virtual void on_peer_left(int rank) = 0;
  virtual void on_message(int rank, ByteView message) = 0;
  // This process could not receive a message that was sent to it, for example because memory ran out.
  virtual void on_broken(const Status& /*why*/) {}
};

class Control {
 public:
  virtual ~Control() = default;
  // Starts calling the listener. Messages that arrived earlier are delivered first.
  virtual void start(ControlListener* listener) = 0;
  // Sends a message of at most kMaxMessage bytes. Best effort, never blocks; a message to a dead peer is
  // dropped. Any thread.
  virtual void send(int rank, ByteView message) = 0;
  // Delivers messages that have arrived, where no thread does so (simulation). Any thread; cheap when there
  // are none.
  virtual void poll() {}
  // Sends the goodbye to all peers. Any thread.
  virtual void leave() = 0;
  // Stops calling the listener. On return no call is running, unless stop was called from the listener. Any
  // thread.
  virtual void stop() = 0;

  static constexpr size_t kMaxMessage = 1u << 20;
};

}  // namespace weft
