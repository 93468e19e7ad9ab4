#include "rendezvous/socket.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "base/text.h"

namespace weft {
namespace {

constexpr int kBacklog = 1024;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress unix_address(const std::string& name) {
  SocketAddress address;
  auto* un = reinterpret_cast<sockaddr_un*>(&address.storage);
  un->sun_family = AF_UNIX;
  // The first byte stays zero, which selects the abstract namespace. The size counts; there is no terminator.
  const size_t size = std::min(name.size(), sizeof un->sun_path - 1);
  std::memcpy(un->sun_path + 1, name.data(), size);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

using Found = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Status ask_system(const std::string& host, uint16_t port, int flags, Found* found) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(host.c_str(), cat(port).c_str(), &hints, &first);
  found->reset(first);
  if (error == 0) return {};
  return Status::error(Code::kSystem, cat("resolving host \"", host, "\": ", ::gai_strerror(error)));
}

// Prefers IPv4: "localhost" often has both, and rank 0 must choose the same address as the others.
const addrinfo& chosen(const Found& found) {
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    if (each->ai_family == AF_INET) return *each;
  }
  return *found;
}

// flags: for getaddrinfo, with TCP.
Status socket_address(const Address& address, int flags, SocketAddress* result) {
  if (address.kind == Address::Kind::kUnix) {
    *result = unix_address(address.name);
    return {};
  }
  Found found(nullptr, &::freeaddrinfo);
  WEFT_TRY(ask_system(address.host, address.port, flags, &found));
  std::memcpy(&result->storage, chosen(found).ai_addr, chosen(found).ai_addrlen);
  result->size = chosen(found).ai_addrlen;
  return {};
}

Status open_socket(int family, Fd* fd, int* error_number) {
  *fd = Fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd->valid()) return {};
  *error_number = errno;
  return Status::system("socket", errno);
}

void set_option(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value,
               sizeof value);  // best effort: no option is needed for correctness
}

// Sends small messages at once, and detects a dead host within about half a minute even when nothing is sent.
void tune_tcp(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

std::string host_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& in6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&in6)) {
      ::inet_ntop(AF_INET, in6.s6_addr + 12, text, sizeof text);
    } else {
      ::inet_ntop(AF_INET6, &in6, text, sizeof text);
    }
  }
  return text;
}

// Listens on all interfaces, IPv6 and IPv4 in one socket; only IPv4 if the machine has no IPv6.
Status listen_everywhere(uint16_t port, Fd* listener, int* error_number) {
  if (open_socket(AF_INET6, listener, error_number).ok()) {
    set_option(listener->get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    set_option(listener->get(), SOL_SOCKET, SO_REUSEADDR, 1);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    any.sin6_port = htons(port);
    if (::bind(listener->get(), reinterpret_cast<sockaddr*>(&any), sizeof any) == 0) return {};
    *error_number = errno;
    if (errno == EADDRINUSE) return Status::system(cat("listening on port ", port), errno);
  }
  WEFT_TRY(open_socket(AF_INET, listener, error_number));
  set_option(listener->get(), SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  any.sin_port = htons(port);
  if (::bind(listener->get(), reinterpret_cast<sockaddr*>(&any), sizeof any) == 0) return {};
  *error_number = errno;
  return Status::system(cat("listening on port ", port), errno);
}

Status listen_on_host(const Address& address, Fd* listener, int* error_number) {
  SocketAddress target;
  // An address of this host: no name server is queried.
  WEFT_TRY(socket_address(address, AI_PASSIVE, &target));
  WEFT_TRY(open_socket(target.family(), listener, error_number));
  if (address.kind == Address::Kind::kTcp) set_option(listener->get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(listener->get(), target.get(), target.size) == 0) return {};
  *error_number = errno;
  return Status::system(cat("listening at ", address.text()), errno);
}

}  // namespace

Status listen_at(const Address& address, bool everywhere, Fd* listener, Address* actual, bool* in_use) {
  *in_use = false;
  *actual = address;
  int error_number = 0;
  const bool tcp = address.kind == Address::Kind::kTcp;
  Status status = tcp && everywhere ? listen_everywhere(address.port, listener, &error_number)
                                    : listen_on_host(address, listener, &error_number);
  if (status.ok() && ::listen(listener->get(), kBacklog) != 0) {
    error_number = errno;
    status = Status::system(cat("listening at ", address.text()), errno);
  }
  *in_use = error_number == EADDRINUSE;
  if (!status.ok() || !tcp) return status;

  SocketAddress bound;
  bound.size = sizeof bound.storage;
  if (::getsockname(listener->get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) {
    return Status::system("getsockname", errno);
  }
  actual->port = ntohs(bound.family() == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound.storage)->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(&bound.storage)->sin_port);
  return {};
}

Status connect_to(const Address& address, Fd* fd, int* error_number) {
  *error_number = 0;
  SocketAddress target;
  if (Status status = socket_address(address, AI_NUMERICHOST, &target); !status.ok()) {
    *error_number = EHOSTUNREACH;
    return status;
  }
  WEFT_TRY(open_socket(target.family(), fd, error_number));
  if (address.kind == Address::Kind::kTcp) tune_tcp(fd->get());
  if (::connect(fd->get(), target.get(), target.size) != 0 && errno != EINPROGRESS) {
    *error_number = errno;
    fd->reset();
    return Status::system(cat("connecting to ", address.text()), *error_number);
  }
  return {};
}

bool queue_is_full(const Address& address, int error_number) {
  return address.kind == Address::Kind::kUnix && error_number == EAGAIN;
}

Status addresses_of(const std::string& host, bool numeric_only, std::vector<std::string>* addresses) {
  addresses->clear();
  Found found(nullptr, &::freeaddrinfo);
  WEFT_TRY(ask_system(host, 0, numeric_only ? AI_NUMERICHOST : 0, &found));
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
      std::string text = host_text(each->ai_addr);
      const bool known = std::find(addresses->begin(), addresses->end(), text) != addresses->end();
      if (each->ai_family == family && !known) addresses->push_back(std::move(text));
    }
  }
  if (!addresses->empty()) return {};
  return Status::error(Code::kSystem, cat("resolving host \"", host, "\": it has no IP address"));
}

int finish_connect(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

Status accept_from(int listener, Fd* fd, bool* exhausted) {
  *exhausted = false;
  *fd = Fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd->valid()) {
    tune_tcp(fd->get());  // fails harmlessly on unix sockets
    return {};
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    // Linux looks for a descriptor before it looks for a connection.
    pollfd waiting{listener, POLLIN, 0};
    *exhausted = ::poll(&waiting, 1, 0) > 0;
    return {};
  }
  if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK) return Status::system("accept", errno);
  return {};  // no connection is waiting, or it was closed already
}

std::string peer_text(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "an unknown address";
  const std::string host = host_text(reinterpret_cast<const sockaddr*>(&address));
  return host.empty() ? "a process of this host" : host;
}

bool descriptors_are_scarce(int newest) {
  constexpr rlim_t kMostReserved = 256;
  rlimit most{};
  if (::getrlimit(RLIMIT_NOFILE, &most) != 0) return false;
  const rlim_t reserved = std::min(most.rlim_cur / 4, kMostReserved);
  return static_cast<rlim_t>(newest) >= most.rlim_cur - reserved;
}

Status check_descriptors(uint64_t more) {
  rlimit most{};
  if (::getrlimit(RLIMIT_NOFILE, &most) != 0) return {};
  // Not std::filesystem, whose iterator ends the process where there is no memory.
  uint64_t open = 0;  // also where /proc is not mounted
  if (DIR* const files = ::opendir("/proc/self/fd"); files != nullptr) {
    while (const dirent* const file = ::readdir(files)) open += file->d_name[0] != '.' ? 1 : 0;
    ::closedir(files);
    open--;  // that of the folder itself
  }
  if (open + more <= most.rlim_cur) return {};
  return Status::error(Code::kSystem,
                       cat("this process may open ", most.rlim_cur, " files, has ", open, " open, and needs ",
                           more, " more: raise `ulimit -n` to ", open + more, " or more"));
}

Status peer_process(int fd, std::optional<PeerProcess>* peer) {
  peer->reset();
  const auto unknown = [](const char* call) {
    const Status why = Status::system(call, errno);
    return Status::error(Code::kAuth, cat("the user of the other side is unknown: ", why.text()));
  };
  int domain = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) return unknown("getsockopt(SO_DOMAIN)");
  if (domain != AF_UNIX) return {};
  ucred credentials{};
  size = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return unknown("getsockopt(SO_PEERCRED)");
  *peer = PeerProcess{credentials.pid, credentials.uid};
  return {};
}

Status check_peer_user(int fd) {
  std::optional<PeerProcess> peer;
  WEFT_TRY(peer_process(fd, &peer));
  if (!peer || peer->uid == ::geteuid()) return {};
  return Status::error(Code::kAuth, cat("the other side runs as user ", peer->uid, ", this side as user ",
                                        ::geteuid(), ": all ranks of a host must run as the same user"));
}

Status check_user_is_known() {
  uid_t overflow = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> overflow;
  if (::geteuid() != overflow) return {};
  // The initial user namespace maps every id, so no user lacks one there.
  constexpr uint64_t kAll = UINT32_MAX;
  std::ifstream map("/proc/self/uid_map");
  for (uint64_t inside = 0, outside = 0, count = 0; map >> inside >> outside >> count;) {
    if (count == kAll) return {};
  }
  return Status::error(
      Code::kAuth, cat("this process runs as user ", overflow,
                       " of a user namespace, which stands for every "
                       "user of other namespaces as well: set WEFT_SECRET_FILE (or WEFT_SECRET) to the same "
                       "secret on all ranks, or give this process another user"));
}

std::vector<std::string> listening_names(const std::string& prefix) {
  constexpr unsigned kListens = 0x10000;  // __SO_ACCEPTCON
  std::vector<std::string> names;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    // Fields: slot, references, protocol, flags, type, state and inode, then the name. A name may contain
    // anything, even newlines: a result is only a candidate to try.
    std::istringstream fields(line);
    std::string slot, references, protocol, type, state, inode, name;
    unsigned flags = 0;
    fields >> slot >> references >> protocol >> std::hex >> flags >> type >> state >> inode >> name;
    if (fields && (flags & kListens) != 0 && name.starts_with("@" + prefix)) names.push_back(name.substr(1));
  }
  return names;
}

std::string local_host(int fd) {
  SocketAddress own;
  own.size = sizeof own.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.size) != 0) return "";
  return host_text(own.get());
}

Status interface_hosts(const NetworkSettings& network, std::vector<std::string>* hosts) {
  hosts->clear();
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return Status::system("getifaddrs", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::set<std::string> names;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) names.insert(each->ifa_name);
  const auto choices = [&] {
    std::string text;
    for (const std::string& name : names) text += cat(text.empty() ? "" : ", ", name);
    return cat("this host has ", text);
  };
  const auto is_left_out = [&](const char* name) {
    const std::vector<std::string>& out = network.left_out;
    return std::find(out.begin(), out.end(), name) != out.end();
  };
  std::vector<int> families;
  if (network.ipv4) families.push_back(AF_INET);
  if (network.ipv6) families.push_back(AF_INET6);
  // only: an interface; null: all but loopback.
  const auto add = [&](const char* only, int family) {
    for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family ||
          (each->ifa_flags & IFF_UP) == 0 || is_left_out(each->ifa_name)) {
        continue;
      }
      if (only != nullptr ? std::strcmp(only, each->ifa_name) != 0 : (each->ifa_flags & IFF_LOOPBACK) != 0)
        continue;
      std::string host = host_text(each->ifa_addr);
      // A link-local address needs the interface's name of the other end.
      if (family == AF_INET6 && host.starts_with("fe80")) continue;
      hosts->push_back(std::move(host));
    }
  };
  for (const std::string& name : network.interfaces) {
    if (!names.contains(name))
      return Status::error(Code::kArg, cat("WEFT_INTERFACES names ", name, ": ", choices()));
    for (const int family : families) add(name.c_str(), family);
  }
  if (network.interfaces.empty()) {
    for (const int family : families) add(nullptr, family);
  }
  if (!hosts->empty() || !network.chooses_interfaces()) return {};
  return Status::error(Code::kArg, cat("WEFT_INTERFACES leaves no interface that is up and has an",
                                       !network.ipv6   ? " IPv4"
                                       : !network.ipv4 ? " IPv6"
                                                       : "",
                                       " address: ", choices()));
}

Status listen_in(const NetworkSettings& network,
                 const std::function<Status(uint16_t port, bool* in_use)>& listen) {
  const int ports = network.ports();
  const int begin = ::getpid() % ports;  // the ranks of a host begin at different ports
  for (int i = 0; i < ports; i++) {
    bool in_use = false;
    Status status = listen(static_cast<uint16_t>(network.first_port + (begin + i) % ports), &in_use);
    if (status.ok() || !in_use) return status;
  }
  return Status::error(Code::kSystem,
                       cat("all ports of WEFT_PORTS=", network.first_port, "-", network.last_port,
                           " are in use: give one for each rank of this host, and some more"));
}

}  // namespace weft
