// Connects the ranks of a mesh with each other: every rank listens, tells the others through the Exchange
// where, and connects to all lower ranks: over a unix socket if that exists here, which is so exactly on the
// same host and in the same network namespace, and else over TCP. Strangers that connect meanwhile are
// bounded and harmless. Used by SocketMesh::make, on its caller's thread.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "rendezvous/address.h"
#include "rendezvous/connection.h"
#include "rendezvous/mesh.h"
#include "rendezvous/mesh_wire.h"
#include "rendezvous/refusals.h"

namespace weft::mesh {

// A connection to a rank, authenticated, both sides knowing who the other one is.
struct Peer {
  Connection connection;
  bool same_host = false;  // over a unix socket, of the same user
};

class Former {
 public:
  Former(Exchange& exchange, const MeshOptions& options, Clock& clock, Log& log)
      : exchange_(exchange), options_(options), clock_(clock), refusals_("mesh", clock, log) {}

  // (*peers)[rank] is connected, except for the own rank. Collective.
  Status form(std::vector<Peer>* peers);
  // The smallest of all ranks', negative if nobody has one. After form().
  int64_t heartbeat_timeout_ms() const { return heartbeat_timeout_ms_; }

 private:
  // A connection on its way to become a peer's.
  struct Link {
    Connection connection;
    int rank = -1;  // of an outgoing one
    bool unix_socket = false;
    bool connecting = false;  // the socket is not connected yet
    uint64_t since_ns = 0;    // of an incoming one: when it was accepted, or said Weft's hello
    Deadline deadline = Deadline::never();
    bool outgoing() const { return rank >= 0; }
  };
  // How far the search for a way to a lower rank is.
  struct Route {
    std::vector<Address> candidates;  // unix first
    size_t next = 0;
    bool busy = false;  // a link is on its way
    Deadline not_before = Deadline::at(0);
    std::string why_not;
  };

  Status listen_and_tell();
  Status connect_all();
  bool complete() const;
  void start_links();
  void start_link(int rank);
  Status wait_for_events();
  Status look_at_peers(size_t first);
  Status closed_by(int rank);
  void accept_from_all();
  bool displace(bool greeted, size_t most);
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
  std::vector<Peer> peers_;
  std::vector<Link> links_;
  bool exhausted_ = false;     // no descriptors: leave the listeners alone for a while
  std::vector<pollfd> ready_;  // listeners, the exchange, links_, then connected peers
};

}  // namespace weft::mesh
