#include "rendezvous/mesh_connect.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/interrupt.h"
#include "base/text.h"
#include "rendezvous/resolve.h"
#include "rendezvous/socket.h"

namespace weft::mesh {
namespace {

constexpr int64_t kUnauthenticatedMs = 5000;  // for an incoming connection to become a peer's
constexpr int64_t kTryTcpMs = 3000;           // for one address of a rank
constexpr int64_t kResolveMs = 500;           // for name resolution, which blocks all other connections here
constexpr int64_t kRetryMs = 50;              // before all addresses are tried again
constexpr int64_t kFullMs = 2000;             // for a unix socket whose queue is full to take a connection
constexpr int64_t kEchoMs = 200;              // for the reason why a rank closed its connection
constexpr int64_t kAskMs = 5;                 // before the exchange is polled for it again
constexpr int kMaxSilent = 64;                // incoming connections that have not sent Weft's hello
constexpr int kMaxGreeted = 64;               // those that have, and are not authenticated
constexpr int kAcceptsAtOnce = 64;
constexpr size_t kFixedPolls = 4;
constexpr uint64_t kFurtherDescriptors = 4;  // which the rest of group setup opens

std::string random_name() {
  static constexpr char kHex[] = "0123456789abcdef";
  const Key random = random_key();
  std::string name = "weft-mesh-";
  for (size_t i = 0; i < 16; i++) {
    const auto byte = static_cast<unsigned>(random[i]);
    name += {kHex[byte >> 4], kHex[byte & 15]};
  }
  return name;
}

Address unix_at(const std::string& name) {
  Address address;
  address.kind = Address::Kind::kUnix;
  address.name = name;
  return address;
}

Address tcp_at(const std::string& host, uint16_t port) {
  Address address;
  address.kind = Address::Kind::kTcp;
  address.host = host;
  address.port = port;
  return address;
}

}  // namespace

Status MeshConnector::connect(std::vector<PeerConnection>* peers) {
  peers_.resize(static_cast<size_t>(exchange_.size()));
  routes_.resize(static_cast<size_t>(exchange_.rank()));
  WEFT_TRY(check_descriptors(peers_.size() + kFurtherDescriptors));
  connected_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!connected_.valid()) return Status::system("epoll_create1", errno);
  WEFT_TRY(listen_and_publish());
  WEFT_TRY(connect_all());
  // No rank continues before all ranks are connected.
  std::vector<Bytes> all;
  WEFT_TRY(exchange_.all_gather({}, &all, options_.deadline));
  *peers = std::move(peers_);
  return {};
}

Status MeshConnector::listen_and_publish() {
  Advertisement mine;
  mine.unix_name = random_name();
  mine.key = random_key();
  mine.heartbeat_timeout_ms = options_.heartbeat_timeout_ms;
  Address actual;
  bool in_use = false;
  WEFT_TRY(listen_at(unix_at(mine.unix_name), false, &unix_listener_, &actual, &in_use));
  if (options_.tcp) {
    WEFT_TRY(listen_in(options_.network, [&](uint16_t port, bool* taken) {
      return listen_at(tcp_at("", port), true, &tcp_listener_, &actual, taken);
    }));
    mine.tcp_port = actual.port;
    std::vector<std::string> hosts;
    WEFT_TRY(interface_hosts(options_.network, &hosts));
    const bool chosen = options_.network.chooses_interfaces();
    if (!options_.host.empty() && !chosen) mine.hosts.push_back(options_.host);
    for (const std::string& host : hosts) {
      if (chosen || host != options_.host) mine.hosts.push_back(host);
    }
  }

  std::vector<Bytes> all;
  WEFT_TRY(exchange_.all_gather(encode(mine), &all, options_.deadline));
  for (size_t rank = 0; rank < all.size(); rank++) {
    const int name = exchange_.name(static_cast<int>(rank));
    const std::optional<Versions> versions = versions_of(all[rank]);
    if (versions && !compatible(*versions, {})) {
      return Status::error(Code::kVersion, cat("rank ", name, " is ", version_text(*versions), ", rank ",
                                               exchange_.name(exchange_.rank()), " is ", version_text({}),
                                               ": install the same Weft on all hosts"))
          .with_ranks({name});
    }
    Advertisement theirs;
    if (!decode(all[rank], &theirs)) {
      return Status::error(Code::kMismatch, cat("rank ", name, " sent ", all[rank].size(),
                                                " bytes that are not its addresses: all ranks must create "
                                                "the communicator together, with one version of Weft"))
          .with_ranks({name});
    }
    if (rank == 0) key_ = AuthKey{theirs.key, true};
    if (theirs.heartbeat_timeout_ms >= 0 &&
        (heartbeat_timeout_ms_ < 0 || theirs.heartbeat_timeout_ms < heartbeat_timeout_ms_)) {
      heartbeat_timeout_ms_ = theirs.heartbeat_timeout_ms;
    }
    if (rank >= routes_.size()) continue;
    Route& route = routes_[rank];
    route.candidates.push_back(unix_at(theirs.unix_name));
    if (!options_.tcp || theirs.tcp_port == 0) continue;
    for (const std::string& host : theirs.hosts) route.candidates.push_back(tcp_at(host, theirs.tcp_port));
  }
  return {};
}

bool MeshConnector::complete() const {
  for (size_t rank = 0; rank < peers_.size(); rank++) {
    if (static_cast<int>(rank) != exchange_.rank() && !peers_[rank].connection.open()) return false;
  }
  return true;
}

Status MeshConnector::connect_all() {
  while (!complete()) {
    if (options_.deadline.expired(clock_)) return timed_out();
    start_links();
    WEFT_TRY(wait_for_events());
    const size_t polled = links_.size();
    if (ready_[3].revents != 0) WEFT_TRY(check_peers());
    for (size_t i = 0; i < polled; i++) serve(links_[i], ready_[kFixedPolls + i].revents);
    accept_from_all();
    std::erase_if(links_, [](const Link& link) { return !link.connection.open(); });
  }
  return {};
}

void MeshConnector::start_links() {
  for (int rank = 0; rank < exchange_.rank(); rank++) {
    const Route& route = routes_[static_cast<size_t>(rank)];
    if (peers_[static_cast<size_t>(rank)].connection.open() || route.busy) continue;
    if (route.not_before.expired(clock_)) start_link(rank);
  }
}

void MeshConnector::start_link(int rank) {
  Route& route = routes_[static_cast<size_t>(rank)];
  Address address = route.candidates[route.next];
  route.next = (route.next + 1) % route.candidates.size();
  if (route.next == 0) route.not_before = Deadline::after(clock_, kRetryMs, 0);

  Fd fd;
  int error_number = 0;
  Status status;
  if (address.kind == Address::Kind::kTcp) {
    const Deadline soon = options_.deadline.earlier(Deadline::after(clock_, kResolveMs, 0));
    std::vector<std::string> addresses;
    status = options_.resolver.resolve(address.host, clock_, soon, options_.on_thread_start, &addresses);
    if (status.ok()) address.host = addresses.front();  // the rank has published its other addresses too
  }
  if (status.ok()) status = connect_to(address, &fd, &error_number);
  if (!status.ok()) {
    route.why_not = status.text();
    // Other users of this host fill the rank's queue. Over TCP it would share no memory with this rank.
    if (queue_is_full(address, error_number)) {
      if (!route.full_until) route.full_until = Deadline::after(clock_, kFullMs, 0);
      if (route.full_until->expired(clock_)) return;
      route.next = 0;
      route.not_before = Deadline::after(clock_, kRetryFullMs, 0);
    }
    return;
  }
  Link link;
  link.rank = rank;
  link.unix_socket = address.kind == Address::Kind::kUnix;
  link.connecting = true;
  // No deadline for a unix socket: if it exists it is the right one, and there is no other address to try.
  if (!link.unix_socket) link.deadline = Deadline::after(clock_, kTryTcpMs, 0);
  link.connection = Connection(std::move(fd), Role::kClient, key_);
  link.connection.send(hello_frame(exchange_.rank()));
  route.busy = true;
  links_.push_back(std::move(link));
}

Status MeshConnector::wait_for_events() {
  ready_.clear();
  // poll ignores a descriptor of -1.
  ready_.push_back({exhausted_ ? -1 : unix_listener_.get(), POLLIN, 0});
  ready_.push_back({exhausted_ ? -1 : tcp_listener_.get(), POLLIN, 0});
  ready_.push_back({exchange_.watch_fd(), POLLIN, 0});
  ready_.push_back({connected_.get(), POLLIN, 0});
  Deadline next = options_.deadline;
  if (exhausted_) next = next.earlier(Deadline::after(clock_, kExhaustedPauseMs, 0));
  exhausted_ = false;
  for (const Link& link : links_) {
    const short events = link.connecting ? POLLOUT : link.connection.events();
    ready_.push_back({link.connection.fd(), events, 0});
    next = next.earlier(link.deadline);
  }
  for (int rank = 0; rank < exchange_.rank(); rank++) {
    const Route& route = routes_[static_cast<size_t>(rank)];
    if (!route.busy && !peers_[static_cast<size_t>(rank)].connection.open())
      next = next.earlier(route.not_before);
  }
  // An exchange without a descriptor is polled periodically.
  const bool ask = ready_[2].fd < 0;
  if (ask) next = next.earlier(Deadline::after(clock_, kRetryMs, 0));
  next = next.earlier(Interrupt::next());
  ::poll(ready_.data(), ready_.size(), next.remaining_ms(clock_));
  return ask || ready_[2].revents != 0 || Interrupt::due() ? exchange_.check() : Status();
}

// A connected rank sends nothing before all are connected: a readable connection has ended.
Status MeshConnector::check_peers() {
  std::array<epoll_event, 16> events{};
  const int count = ::epoll_wait(connected_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; i++) {
    const uint32_t rank = events[static_cast<size_t>(i)].data.u32;
    std::vector<Bytes> frames;
    bool closed = false;
    const Status status = peers_[rank].connection.read(&frames, &closed);
    if (status.ok() && !closed && frames.empty()) continue;
    return closed_by(static_cast<int>(rank));
  }
  return {};
}

// A rank that gives up because of another rank's failure closes its connections too. Waits for the reason,
// which arrives over the exchange.
Status MeshConnector::closed_by(int rank) {
  const Deadline echo = options_.deadline.earlier(Deadline::after(clock_, kEchoMs, 0));
  while (!echo.expired(clock_)) {
    WEFT_TRY(exchange_.check());
    pollfd told{exchange_.watch_fd(), POLLIN, 0};
    ::poll(&told, 1, echo.earlier(Deadline::after(clock_, kAskMs, 0)).remaining_ms(clock_));
  }
  return Status::error(Code::kPeerFailed,
                       cat("rank ", exchange_.name(rank),
                           " closed its connection while the communicator was being created"),
                       Evidence::kConnection)
      .with_ranks({exchange_.name(rank)});
}

void MeshConnector::accept_from_all() {
  if (ready_[0].revents != 0) accept_links(unix_listener_, true);
  if (ready_[1].revents != 0) accept_links(tcp_listener_, false);
}

// Closes the oldest of the incoming connections that have (or have not) sent Weft's hello, if there are more
// than `most` of them. A rank that is affected tries again.
bool MeshConnector::displace(bool greeted, int most) {
  Link* oldest = nullptr;
  int unauthenticated = 0;
  for (Link& link : links_) {
    const Connection& connection = link.connection;
    if (link.outgoing() || !connection.open() || connection.established() || connection.greeted() != greeted)
      continue;
    unauthenticated++;
    if (oldest == nullptr || link.since_ns < oldest->since_ns) oldest = &link;
  }
  if (unauthenticated <= most) return false;
  oldest->connection.close();
  return true;
}

// Accepts a bounded number at a time, so that existing connections are served however many arrive.
void MeshConnector::accept_links(const Fd& listener, bool unix_socket) {
  for (int i = 0; i < kAcceptsAtOnce; i++) {
    Fd fd;
    const Status accepted = accept_from(listener.get(), &fd, &exhausted_);
    if (exhausted_ && (displace(false, 0) || displace(true, 0))) {
      exhausted_ = false;
      continue;
    }
    if (!accepted.ok() || !fd.valid()) return;
    if (Status status = check_peer_user(fd.get()); !status.ok()) {
      refusals_.report(LogLevel::kWarn, status.text());
      continue;
    }
    displace(false, kMaxSilent - 1);
    // Leaves descriptors to the rest of this process.
    while (descriptors_are_scarce(fd.get()) &&
           (displace(false, kMostWhenScarce) || displace(true, kMostWhenScarce))) {
    }
    Link link;
    link.unix_socket = unix_socket;
    link.since_ns = clock_.now_ns();
    link.deadline = Deadline::after(clock_, kUnauthenticatedMs, 0);
    link.connection = Connection(std::move(fd), Role::kServer, key_);
    links_.push_back(std::move(link));
    // A rank sends its hello as soon as it is connected, so it counts as silent only for a moment.
    serve(links_.back(), POLLIN);
  }
}

void MeshConnector::serve(Link& link, short events) {
  if (!link.connection.open()) return;  // displaced
  if (link.deadline.expired(clock_)) return drop(link, "it did not answer in time");
  if (events == 0) return;
  if (link.connecting) {
    if (const int error = finish_connect(link.connection.fd()); error != 0) {
      return drop(link, Status::system("connecting", error).text());
    }
    if (Status status = check_peer_user(link.connection.fd()); !status.ok()) return drop(link, status.text());
    link.connecting = false;
  }
  const bool silent = !link.connection.greeted();
  std::vector<Bytes> frames;
  bool closed = false;
  const Status status = link.connection.read(&frames, &closed);
  if (!link.outgoing() && silent && link.connection.greeted()) {
    link.since_ns = clock_.now_ns();
    displace(true, kMaxGreeted);
  }
  if (!status.ok()) return drop(link, status.text());
  if (!frames.empty()) return take_hello(link, frames[0]);
  if (closed || !link.connection.flush()) drop(link, "it closed the connection");
}

// Handles the rank number that the other side, which holds the key, sends.
void MeshConnector::take_hello(Link& link, ByteView frame) {
  const std::optional<int> rank = hello_rank(frame);
  const bool expected =
      rank && (link.outgoing() ? *rank == link.rank : *rank > exchange_.rank() && *rank < exchange_.size());
  if (!expected) {
    return drop(link, cat("it sent ", rank ? cat("rank ", *rank) : std::string("no rank"), ", expected ",
                          link.outgoing() ? cat("rank ", link.rank)
                                          : cat("one of the ranks above ", exchange_.rank(), " and below ",
                                                exchange_.size())));
  }
  PeerConnection& peer = peers_[static_cast<size_t>(*rank)];
  if (peer.connection.open()) return drop(link, cat("rank ", exchange_.name(*rank), " is connected already"));
  if (!link.outgoing()) link.connection.send(hello_frame(exchange_.rank()));
  if (!link.connection.flush()) return drop(link, "it closed the connection");
  link.connection.set_limit(kLargeFrame);
  epoll_event end{EPOLLIN, {.u32 = static_cast<uint32_t>(*rank)}};
  if (::epoll_ctl(connected_.get(), EPOLL_CTL_ADD, link.connection.fd(), &end) != 0)
    return drop(link, Status::system("epoll_ctl", errno).text());
  peer.connection = std::move(link.connection);
  peer.same_host = link.unix_socket;
}

void MeshConnector::drop(Link& link, const std::string& why) {
  link.connection.close();
  if (!link.outgoing()) {
    refusals_.report(LogLevel::kInfo, why);
    return;
  }
  Route& route = routes_[static_cast<size_t>(link.rank)];
  const size_t tried = (route.next + route.candidates.size() - 1) % route.candidates.size();
  route.busy = false;
  route.why_not = cat(route.candidates[tried].text(), ": ", why);
}

Status MeshConnector::timed_out() const {
  std::vector<int> absent;
  std::string reasons;
  for (int rank = 0; rank < exchange_.size(); rank++) {
    if (rank == exchange_.rank() || peers_[static_cast<size_t>(rank)].connection.open()) continue;
    absent.push_back(exchange_.name(rank));
    if (rank >= exchange_.rank() || reasons.size() > 256) continue;
    const std::string& why = routes_[static_cast<size_t>(rank)].why_not;
    if (!why.empty()) reasons += cat(reasons.empty() ? " (" : "; ", "rank ", absent.back(), ": ", why);
  }
  std::sort(absent.begin(), absent.end());
  return Status::error(Code::kTimeout,
                       cat("no control connection with ", absent.size() == 1 ? "rank " : "ranks ",
                           list_text(absent), " before the deadline", reasons, reasons.empty() ? "" : ")"),
                       Evidence::kDeadline)
      .with_ranks(absent);
}

}  // namespace weft::mesh
