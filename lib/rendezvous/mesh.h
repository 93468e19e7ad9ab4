// The control channel over sockets. Every rank is connected to every other, by a unix socket inside a host
// and by TCP between hosts. lib/bootstrap creates it during group setup, over an Exchange. It first passes
// file descriptors (FdChannel), then carries small messages, heartbeats and failure evidence (Control).
//
// Its thread ("weft-control") sleeps in epoll until stop(). It reads frames, calls the listener, and detects
// a peer's death by the end of the connection and, inside a host, by a pidfd. It sends this rank's
// heartbeats, whatever the program computes. It declares a rank failed from which no complete frame arrived
// within the heartbeat timeout: the rank is stopped, or its link is silent or too slow (heartbeat.h).
//
// Every connection is authenticated and encrypted (secure_stream.h) with a key that rank 0 generates for the
// communicator and the Exchange distributes.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "environment/network.h"
#include "rendezvous/resolve.h"
#include "transport/control.h"
#include "transport/exchange.h"
#include "transport/fd_channel.h"

namespace weft {

struct MeshOptions {
  // Ranks may be on other hosts: also listens on TCP. Requires authenticated members.
  bool tcp = false;
  // Address of this host for other hosts, tried first ("10.0.0.7"); empty: the addresses of all interfaces.
  std::string host;
  NetworkSettings network;  // which ports and interfaces to use; with interfaces, host is ignored
  ThreadStart on_thread_start;
  Resolver resolver;
  // Heartbeat timeout; negative: none. The smallest value of all ranks applies to all: a rank that declares
  // another failed fails the communicator on every rank, so a longer timeout on the others would have no
  // effect.
  int64_t heartbeat_timeout_ms = -1;
  Deadline deadline = Deadline::never();
};

class SocketMesh final : public Control, public FdChannel {
 public:
  // Creates a mesh. Collective over `exchange`. clock and log outlive the mesh. kTimeout and kPeerFailed name
  // the ranks.
  static Status make(Exchange& exchange, const MeshOptions& options, Clock& clock, Log& log,
                     std::unique_ptr<SocketMesh>* mesh);
  // Does what stop() does, then closes all connections. Peers that received no goodbye see this rank as lost.
  ~SocketMesh() override;

  void start(ControlListener* listener) override;
  void send(int rank, ByteView message) override;
  void leave() override;
  void stop() override;

  bool same_host(int rank) const override;
  Status send_fd(int rank, int fd) override;
  Status receive_fd(int rank, Fd* fd, Deadline deadline) override;

  struct Core;  // shared with the thread: mesh_core.h

 private:
  explicit SocketMesh(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace weft
