// Stream sockets of the two kinds that Weft uses, all non-blocking and close-on-exec. Every system call about
// sockets is in socket.cpp or connection.cpp. Threads: any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "rendezvous/address.h"

namespace weft {

// Listen. With `everywhere` a TCP socket accepts on all interfaces, whatever the host is called; otherwise
// on that host's address. *actual has the port that was chosen for port 0. kSystem with errno's text; *in_use
// says whether somebody else listens there.
Status listen_at(const Address& address, bool everywhere, Fd* listener, Address* actual, bool* in_use);

// Begin to connect. Not yet connected: poll for POLLOUT, then finish_connect. *error_number says why not, for
// callers that try again. A TCP host is an address, no name (resolve.h): this never blocks.
Status connect_to(const Address& address, Fd* fd, int* error_number);
// 0, or the errno of a connection attempt that has ended.
int finish_connect(int fd);
// The address of a host. Of a name (unless `numeric_only`) it may block for as long as the system's resolver
// takes: call it through resolve().
Status first_address(const std::string& host, bool numeric_only, std::string* numeric);

// The next connection that waits, or none. kSystem only for what should not happen; *exhausted: this process
// has no descriptors left, try later.
Status accept_from(int listener, Fd* fd, bool* exhausted);
// How long such a process leaves its listeners alone: they stay readable meanwhile.
inline constexpr int64_t kExhaustedPauseMs = 100;

struct PeerProcess {
  pid_t pid = 0;  // 0: in a namespace that cannot be seen from here
  uid_t uid = 0;
};
// Who is at the other end of a unix socket; none for TCP. kAuth when the kernel does not say.
Status peer_process(int fd, std::optional<PeerProcess>* peer);
// Ok, or kAuth: a unix socket's peer must be this user.
Status check_peer_user(int fd);
// Ok, or kAuth where the kernel's word on a peer's user is not exact: this user's number also stands for
// users that have no number in this user namespace.
Status check_user_is_known();

// Names of the abstract namespace that begin with `prefix` and at which somebody listens, of whatever user.
// Empty if the kernel does not list them.
std::vector<std::string> listening_names(const std::string& prefix);

// The address at this end of a TCP connection, without port; empty for unix.
std::string local_host(int fd);
// Addresses of this host's interfaces that other hosts may reach, IPv4 first.
std::vector<std::string> interface_hosts();

}  // namespace weft
