#include "reach.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/fd.h"
#include "base/text.h"
#include "environment/network.h"
#include "gather.h"
#include "rendezvous/address.h"
#include "rendezvous/socket.h"
#include "weft/launch.h"

namespace doctor {
namespace {

using weft::cat;
using weft::Fd;
using weft::Status;

constexpr size_t kNumberBytes = 32;                // hexadecimal digits
constexpr size_t kProbeBytes = size_t{256} << 10;  // more than small packets carry, and the number before it
constexpr size_t kAtOnce = 64;                     // connections of one rank
constexpr size_t kMostClients = 1024;
constexpr int64_t kClientMs = 10'000;

// Accepts connections on a thread of its own until it is destroyed. A client sends the number and
// kProbeBytes; then it gets the number back. Anything else closes its connection.
class Responder {
 public:
  Responder() : number_(random_hex(kNumberBytes / 2)) {}
  Responder(const Responder&) = delete;
  Responder& operator=(const Responder&) = delete;
  ~Responder() {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
    thread_.join();
  }

  Status start() {
    weft::Address everywhere, actual;
    everywhere.kind = weft::Address::Kind::kTcp;
    weft::NetworkSettings network;
    WEFT_TRY(weft::process_network(&network));
    WEFT_TRY(weft::listen_in(network, [&](uint16_t port, bool* in_use) {
      everywhere.port = port;
      return weft::listen_at(everywhere, true, &listener_, &actual, in_use);
    }));
    port_ = actual.port;
    stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
    if (!stop_.valid()) return Status::system("eventfd", errno);
    thread_ = std::thread([this] { serve(); });
    return {};
  }
  uint16_t port() const { return port_; }
  const std::string& number() const { return number_; }

 private:
  struct Client {
    Fd fd;
    std::string begin;  // the number, as far as it has come
    size_t received = 0;
    weft::Deadline deadline;
  };

  void serve() {
    std::vector<Client> clients;
    for (;;) {
      std::vector<pollfd> polled{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Client& client : clients) polled.push_back({client.fd.get(), POLLIN, 0});
      ::poll(polled.data(), polled.size(), 100);
      if (polled[0].revents != 0) return;
      for (size_t i = 0; i < clients.size(); ++i) {
        if (polled[i + 2].revents != 0 && !take(&clients[i])) clients[i].fd.reset();
      }
      std::erase_if(clients, [&](const Client& client) {
        return !client.fd.valid() || client.deadline.expired(clock_);
      });
      Fd fd;
      bool exhausted = false;
      if (!weft::accept_from(listener_.get(), &fd, &exhausted).ok() || !fd.valid()) continue;
      if (clients.size() < kMostClients)
        clients.push_back({std::move(fd), "", 0, weft::Deadline::after(clock_, kClientMs, 0)});
    }
  }

  // Reads what has come. Returns false when the connection is to be closed.
  bool take(Client* client) const {
    char data[65536];
    const ssize_t got = ::recv(client->fd.get(), data, sizeof data, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    const auto count = static_cast<size_t>(got);
    if (client->begin.size() < kNumberBytes)
      client->begin.append(data, std::min(count, kNumberBytes - client->begin.size()));
    client->received += count;
    if (!number_.starts_with(client->begin)) return false;
    if (client->received < kNumberBytes + kProbeBytes) return true;
    [[maybe_unused]] const ssize_t sent =
        ::send(client->fd.get(), number_.data(), number_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return false;
  }

  const std::string number_;
  weft::SystemClock clock_;
  Fd listener_, stop_;
  uint16_t port_ = 0;
  std::thread thread_;
};

// Where a rank answers.
struct Place {
  std::string host;
  std::string machine;  // as in Facts
  std::vector<std::string> addresses;
  uint16_t port = 0;
  std::string number;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Place, host, machine, addresses, port, number)

// One attempt, in progress.
class Attempt {
 public:
  Attempt(Reach reach, const Place& place, weft::Clock& clock)
      : reach_(std::move(reach)), number_(place.number), deadline_(weft::Deadline::after(clock, kTryMs, 0)) {
    outgoing_ = number_ + std::string(kProbeBytes, '.');
    weft::Address address;
    address.kind = weft::Address::Kind::kTcp;
    address.host = reach_.address;
    address.port = place.port;
    int error_number = 0;
    if (const Status status = weft::connect_to(address, &fd_, &error_number); !status.ok())
      fail(std::strerror(error_number));
  }

  bool over() const { return !fd_.valid(); }
  const Reach& reach() const { return reach_; }
  pollfd polled() const {
    const bool sending = !reach_.connected || sent_ < outgoing_.size();
    return {fd_.get(), static_cast<short>(sending ? POLLOUT : POLLIN), 0};
  }

  void advance(bool ready, weft::Clock& clock) {
    if (ready) act();
    if (over() || !deadline_.expired(clock)) return;
    reach_.delayed = true;
    fail(reach_.connected
             ? cat("of ", weft::bytes_text(kProbeBytes), " not all arrived within ", kTryMs / 1000, " s")
             : cat("no answer within ", kTryMs / 1000, " s"));
  }

 private:
  void act() {
    if (!reach_.connected) {
      if (const int error_number = weft::finish_connect(fd_.get()); error_number != 0)
        return fail(std::strerror(error_number));
      reach_.connected = true;
    }
    if (sent_ < outgoing_.size()) {
      const ssize_t count =
          ::send(fd_.get(), outgoing_.data() + sent_, outgoing_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) sent_ += static_cast<size_t>(count);
      if (count < 0 && errno != EAGAIN && errno != EINTR) wrong_host();
      return;
    }
    char data[kNumberBytes];
    const ssize_t count = ::recv(fd_.get(), data, sizeof data, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count != static_cast<ssize_t>(kNumberBytes) || number_ != std::string_view(data, kNumberBytes))
      return wrong_host();
    fd_.reset();
  }
  void wrong_host() {
    reach_.connected = false;
    fail("another process answers there");
  }
  void fail(const std::string& why) {
    reach_.result = why;
    fd_.reset();
  }

  Reach reach_;
  const std::string number_;
  const weft::Deadline deadline_;
  std::string outgoing_;
  size_t sent_ = 0;
  Fd fd_;
};

// Tries the addresses of the first ranks of other hosts, if this rank is the first of its host.
std::vector<Reach> try_all(const std::vector<Place>& places, int own) {
  const Place& mine = places[static_cast<size_t>(own)];
  std::vector<Reach> wanted;
  std::set<std::string> machines;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const Place& other = places[rank];
    if (!machines.insert(other.machine).second) continue;
    if (other.machine == mine.machine && static_cast<int>(rank) != own) return {};
    if (static_cast<int>(rank) == own) continue;
    for (const std::string& address : other.addresses)
      wanted.push_back({own, static_cast<int>(rank), mine.host, other.host, address});
  }
  weft::SystemClock clock;
  std::vector<Reach> done;
  std::vector<Attempt> open;
  size_t next = 0;
  while (next < wanted.size() || !open.empty()) {
    while (next < wanted.size() && open.size() < kAtOnce) {
      const Reach& reach = wanted[next++];
      open.emplace_back(reach, places[static_cast<size_t>(reach.to)], clock);
    }
    std::vector<pollfd> polled;
    for (const Attempt& attempt : open) polled.push_back(attempt.polled());
    ::poll(polled.data(), polled.size(), 50);
    std::vector<Attempt> still;
    for (size_t i = 0; i < open.size(); ++i) {
      if (!open[i].over()) open[i].advance(polled[i].revents != 0, clock);
      if (open[i].over()) {
        done.push_back(open[i].reach());
      } else {
        still.push_back(std::move(open[i]));
      }
    }
    open = std::move(still);
  }
  return done;
}

}  // namespace

Status try_addresses(weft::Exchange& exchange, const Facts& mine, weft::Deadline deadline,
                     std::vector<Reach>* attempts) {
  Responder responder;
  WEFT_TRY(responder.start());
  const Place place{mine.host, mine.machine, mine.network.addresses, responder.port(), responder.number()};
  std::vector<Place> places;
  WEFT_TRY(all_gather(exchange, place, deadline, &places));
  std::vector<std::vector<Reach>> all;
  WEFT_TRY(all_gather(exchange, try_all(places, exchange.rank()), deadline, &all));
  for (const std::vector<Reach>& of_rank : all)
    attempts->insert(attempts->end(), of_rank.begin(), of_rank.end());
  return {};
}

}  // namespace doctor
