// Connects the ranks of a mesh. Every rank listens, publishes its addresses through the Exchange, and
// connects to all lower ranks. It uses a unix socket if the lower rank's socket exists here, which is the
// case exactly on the same host and in the same network namespace; otherwise TCP. Unauthenticated clients
// that connect meanwhile are limited in number and have no effect. Used by SocketMesh::make, on its caller's
// thread.
#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/address.h"
#include "rendezvous/connection.h"
#include "rendezvous/mesh.h"
#include "rendezvous/mesh_wire.h"
#include "rendezvous/refusals.h"

namespace weft::mesh {

// An authenticated connection to a rank; both sides have verified each other's rank.
struct PeerConnection {
  Connection connection;
  bool same_host = false;  // over a unix socket, same user
};

class MeshConnector {
 public:
  MeshConnector(Exchange& exchange, const MeshOptions& options, Clock& clock, Log& log)
      : exchange_(exchange), options_(options), clock_(clock), refusals_("mesh", clock, log) {}

  // Connects (*peers)[rank] for all other ranks. Collective.
  Status connect(std::vector<PeerConnection>* peers);
  // Returns the smallest heartbeat timeout of all ranks, negative if no rank has one. Valid after connect().
  int64_t heartbeat_timeout_ms() const { return heartbeat_timeout_ms_; }

 private:
  // A connection that is not yet a peer's.
  struct Link {
    Connection connection;
    int rank = -1;  // for an outgoing connection
    bool unix_socket = false;
    bool connecting = false;  // the socket is not connected yet
    uint64_t since_ns = 0;    // for an incoming connection: when it was accepted, or sent Weft's hello
    Deadline deadline = Deadline::never();
    bool outgoing() const { return rank >= 0; }
  };
  // Progress of the search for a working address of a lower rank.
  struct Route {
    std::vector<Address> candidates;  // unix first
    size_t next = 0;
    bool busy = false;  // a connection attempt is running
    Deadline not_before = Deadline::at(0);
    std::optional<Deadline> full_until;  // until then no other address than a full unix socket is tried
    std::string why_not;
  };

  Status listen_and_publish();
  Status connect_all();
  bool complete() const;
  void start_links();
  void start_link(int rank);
  Status wait_for_events();
  Status check_peers();
  Status closed_by(int rank);
  void accept_from_all();
  bool displace(bool greeted, int most);
  void accept_links(const Fd& listener, bool unix_socket);
  void serve(Link& link, short events);
  void take_hello(Link& link, ByteView frame);
  void drop(Link& link, const std::string& why);
  Status timed_out() const;

  Exchange& exchange_;
  const MeshOptions& options_;
  Clock& clock_;
  Refusals refusals_;
  Fd unix_listener_, tcp_listener_;
  AuthKey key_;
  int64_t heartbeat_timeout_ms_ = -1;
  std::vector<Route> routes_;  // to lower ranks
  std::vector<PeerConnection> peers_;
  Fd connected_;  // epoll: readable when the connection of one of peers_ is
  std::vector<Link> links_;
  bool exhausted_ = false;     // out of descriptors: stop accepting for kExhaustedPauseMs
  std::vector<pollfd> ready_;  // listeners, the exchange, connected_, then links_
};

}  // namespace weft::mesh
