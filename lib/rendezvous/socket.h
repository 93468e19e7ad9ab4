// Stream sockets of the two kinds that Weft uses, all non-blocking and close-on-exec. Only socket.cpp and
// connection.cpp make system calls on sockets. Threads: any thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "environment/network.h"
#include "rendezvous/address.h"

namespace weft {

// Listens. With `everywhere` a TCP socket accepts on all interfaces, regardless of the host in the address;
// otherwise on that host's address. *actual has the port that was chosen for port 0. kSystem with errno's
// text; *in_use: another socket listens there.
Status listen_at(const Address& address, bool everywhere, Fd* listener, Address* actual, bool* in_use);

// Begins to connect. The socket is not connected yet: poll for POLLOUT, then call finish_connect.
// *error_number is the errno of a failure, for callers that retry. A TCP host must be an address, not a name
// (resolve.h), so this never blocks.
Status connect_to(const Address& address, Fd* fd, int* error_number);
// Returns true if connect_to has failed because a listener's queue is full. Other users can fill the queue of
// a unix socket, and wait to take each place that becomes free: try again soon.
bool queue_is_full(const Address& address, int error_number);
inline constexpr int64_t kRetryFullMs = 2;
// Returns 0, or the errno of a finished connection attempt.
int finish_connect(int fd);
// Returns the addresses of a host, IPv4 first. A name (unless `numeric_only`) may block for as long as the
// system's resolver takes: call it through resolve().
Status addresses_of(const std::string& host, bool numeric_only, std::vector<std::string>* addresses);

// Accepts the next waiting connection, if any. kSystem only for unexpected errors. *exhausted: one waits, but
// this process has no descriptors left; try again later.
Status accept_from(int listener, Fd* fd, bool* exhausted);
// Returns true if few of the descriptors that this process may open are left. newest: one that was just
// opened; the kernel gives out the lowest free number.
bool descriptors_are_scarce(int newest);
// Returns kSystem, with the limit that is needed, unless this process may open `more` further descriptors.
Status check_descriptors(uint64_t more);
// Returns the address of a connection's other end for errors; "a process of this host" for a unix socket.
std::string peer_text(int fd);
// Connections of each kind of unauthenticated client that a listener keeps while descriptors are scarce.
inline constexpr int kMostWhenScarce = 8;
// How long a process without descriptors stops polling its listeners, which stay readable.
inline constexpr int64_t kExhaustedPauseMs = 100;

struct PeerProcess {
  pid_t pid = 0;  // 0: the process is in a pid namespace that is not visible from here
  uid_t uid = 0;
};
// Returns the process at the other end of a unix socket; empty for TCP. kAuth: the kernel does not report it.
Status peer_process(int fd, std::optional<PeerProcess>* peer);
// Returns ok, or kAuth if a unix socket's peer is another user.
Status check_peer_user(int fd);
// Returns ok, or kAuth if the kernel's report of a peer's user is ambiguous: this user's id also represents
// users that have no id in this user namespace.
Status check_user_is_known();

// Returns the names in the abstract namespace that begin with `prefix` and have a listener, of any user.
// Empty if the kernel does not list them.
std::vector<std::string> listening_names(const std::string& prefix);

// Returns the address at this end of a TCP connection, without port; empty for unix.
std::string local_host(int fd);
// Returns the addresses of the settings' interfaces, in their order. By default, those of all interfaces that
// other hosts may reach. IPv4 comes first. kArg, with the names of this host's interfaces: a named one does
// not exist, or none is left.
Status interface_hosts(const NetworkSettings& network, std::vector<std::string>* hosts);
// Calls listen with the ports of the settings, one after the other, until one is not in use; with 0 if any
// port is allowed. kSystem: all are in use. Other errors are those of listen.
Status listen_in(const NetworkSettings& network,
                 const std::function<Status(uint16_t port, bool* in_use)>& listen);

}  // namespace weft
