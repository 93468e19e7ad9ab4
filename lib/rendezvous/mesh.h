// The control channel over sockets: every rank is connected to every other one, by a unix socket inside a
// host and by TCP between hosts. Made by lib/form while it is formed, over an Exchange; then carries
// small messages, signs of life and evidence of death (Control), and before that file descriptors
// (FdChannel).
//
// A thread of its own ("weft-control") sleeps in epoll until stop(): it reads frames, calls the listener, and
// learns of a peer's death by the end of the connection and, inside a host, by a pidfd. It tells the others
// that this rank lives, whatever the program computes, and condemns a rank of which no whole frame came for
// the heartbeat budget: stopped, or behind a link that is silent or drips (heartbeat.h).
// Every connection is authenticated and encrypted (secure_stream.h) with a key that rank 0 makes for the
// comm and the Exchange distributes.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "core/control.h"
#include "core/exchange.h"
#include "core/fd_channel.h"
#include "rendezvous/resolve.h"

namespace weft {

struct MeshOptions {
  // Whether ranks may be on other hosts: listens on TCP too. Only with authenticated members.
  bool tcp = false;
  // The address of this host that other hosts reach, tried first ("10.0.0.7"); empty: those of all
  // interfaces.
  std::string host;
  ThreadStart on_thread_start;
  Resolver resolver;
  // What a rank may be silent; negative: for ever. The smallest of all ranks' counts for all: whoever
  // condemns a rank fails the communicator for everybody, so nobody can be more patient than the others.
  int64_t heartbeat_timeout_ms = -1;
  Deadline deadline = Deadline::never();
};

class SocketMesh final : public Control, public FdChannel {
 public:
  // Collective over `exchange`. clock and log outlive the mesh. kTimeout and kPeerFailed name the ranks.
  static Status make(Exchange& exchange, const MeshOptions& options, Clock& clock, Log& log,
                     std::unique_ptr<SocketMesh>* mesh);
  // As stop(); then closes all connections. Peers that got no farewell see this rank as lost.
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
