// lib/rendezvous under attack: unauthenticated clients may connect to the job's ports as often as they like
// and send anything; the job bootstraps and continues.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include "base/text.h"
#include "free_port.h"
#include "rendezvous/mesh.h"
#include "rendezvous/mesh_wire.h"
#include "rendezvous/secure_stream.h"
#include "rendezvous/socket.h"
#include "rendezvous/store_exchange.h"
#include "support/catch.h"
#include "support/flood.h"

namespace unit_unauthenticated {

using namespace weft;
using test::Flood;

namespace {

SystemClock system_clock;
Log silent;
constexpr int64_t kHardBoundMs = 10'000;  // for a job to bootstrap, whatever the attack
constexpr uint64_t kConnections = 10'000;

Deadline in_ms(int64_t ms) {
  return Deadline::after(system_clock, ms, 0);
}
const AuthKey kSecret = AuthKey::from_secret(std::as_bytes(std::span("a secret of the job")));

StoreOptions member(const std::string& store, int rank, int size, const std::string& job, bool external) {
  StoreOptions options;
  options.rank = rank;
  options.size = size;
  options.store = store;
  options.key = kSecret;
  options.job = job;
  options.external = external;
  return options;
}

// Joins the store once, performs three all-gathers, and checks every rank's bytes.
Status meet(const StoreOptions& options) {
  std::unique_ptr<StoreExchange> exchange;
  WEFT_TRY(StoreExchange::make(options, system_clock, silent, in_ms(kHardBoundMs), &exchange));
  for (int round = 0; round < 3; round++) {
    std::vector<Bytes> all;
    const Bytes mine(static_cast<size_t>(1000 * (options.rank + 1)), static_cast<std::byte>(round));
    WEFT_TRY(exchange->all_gather(mine, &all, in_ms(kHardBoundMs)));
    for (size_t r = 0; r < all.size(); r++) {
      if (all[r] == Bytes(1000 * (r + 1), static_cast<std::byte>(round))) continue;
      return Status::error(Code::kInternal, cat("wrong bytes of rank ", r));
    }
  }
  exchange->finish();
  return {};
}

// Runs body(rank) on a thread for each rank; returns the failures' texts.
std::vector<std::string> as_ranks(int size, const std::function<Status(int)>& body) {
  std::vector<Status> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; rank++) {
    threads.emplace_back([&, rank] { results[static_cast<size_t>(rank)] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> failures;
  for (const Status& status : results) {
    if (!status.ok()) failures.push_back(status.text());
  }
  return failures;
}

const std::vector<std::string> kNone;

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// Returns true if no process listens at the port any more.
bool closed(uint16_t port) {
  Address address;
  Fd fd;
  int error = 0;
  REQUIRE(parse_address(cat("tcp://127.0.0.1:", port), &address).ok());
  if (!connect_to(address, &fd, &error).ok()) return error == ECONNREFUSED;
  REQUIRE(wait_for(fd.get(), POLLOUT, system_clock, in_ms(kHardBoundMs)));
  return finish_connect(fd.get()) == ECONNREFUSED;
}

struct Store {
  Store() {
    Address address;
    REQUIRE(parse_address("tcp://127.0.0.1:0", &address).ok());
    bool in_use = false;
    REQUIRE(StoreServer::start({address, kSecret, {}}, system_clock, silent, &server, &in_use).ok());
  }
  std::unique_ptr<StoreServer> server;
};

}  // namespace

TEST_CASE("jobs bootstrap in sequence while 10,000 hostile connections reach their store") {
  const Store store;
  const size_t before = open_descriptors();
  const Flood flood({store.server->address().port}, test::good_traffic(kSecret));
  for (int job = 0; job < 10 || flood.connections() < kConnections; job++) {
    const auto options = [&](int rank) {
      return member(store.server->address().text(), rank, 4, cat("job ", job), true);
    };
    REQUIRE(as_ranks(4, [&](int rank) { return meet(options(rank)); }) == kNone);
    REQUIRE(open_descriptors() < before + 2 * StoreServer::kMaxUnauthenticated);
  }
}

TEST_CASE("a job whose rank 0 serves the store bootstraps while its port is flooded, and then closes it") {
  const uint16_t port = test::free_port();
  const Flood flood({port}, test::good_traffic(kSecret));
  for (int job = 0; job < 10 || flood.connections() < kConnections; job++) {
    const std::string store = cat("tcp://127.0.0.1:", port);
    REQUIRE(as_ranks(4, [&](int rank) { return meet(member(store, rank, 4, cat(job), false)); }) == kNone);
    REQUIRE(closed(port));  // during a run there is no port to attack
  }
}

TEST_CASE("jobs bootstrap in time while clients send a whole hello and then nothing, as fast as they can") {
  const Store store;
  const Flood flood({store.server->address().port}, test::good_traffic(kSecret), true);
  for (int job = 0; job < 10 || flood.connections() < kConnections; job++) {
    const auto options = [&](int rank) {
      return member(store.server->address().text(), rank, 4, cat("job ", job), true);
    };
    REQUIRE(as_ranks(4, [&](int rank) { return meet(options(rank)); }) == kNone);
  }
}

namespace {

// A rank or an unauthenticated client that makes the handshake step by step, as the test says.
struct Caller {
  explicit Caller(const Address& store) {
    int error = 0;
    REQUIRE(connect_to(store, &fd, &error).ok());
    REQUIRE(wait_for(fd.get(), POLLOUT, system_clock, in_ms(kHardBoundMs)));
  }
  void say() {
    REQUIRE(::send(fd.get(), client.out().data(), client.out().size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(client.out().size()));
    client.out().clear();
  }
  // Returns false when the store ends the connection.
  bool hear() {
    REQUIRE(wait_for(fd.get(), POLLIN, system_clock, in_ms(kHardBoundMs)));
    Bytes bytes(4096);
    std::vector<Bytes> frames;
    const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
    return got > 0 && client.receive(ByteView(bytes).first(static_cast<size_t>(got)), &frames).ok();
  }
  Fd fd;
  SecureStream client{Role::kClient, kSecret};
};

// Connects clients that send a whole hello, receive the store's, and are silent from then on.
void greet(const Address& store, int count, std::vector<std::unique_ptr<Caller>>* clients) {
  for (int i = 0; i < count; i++) {
    clients->push_back(std::make_unique<Caller>(store));
    clients->back()->say();
    REQUIRE(clients->back()->hear());
  }
}

}  // namespace

TEST_CASE("silent clients do not displace a rank in the middle of its handshake") {
  const Store store;
  Caller rank(store.server->address());
  rank.say();
  REQUIRE(rank.hear());  // the store's hello
  std::vector<std::unique_ptr<Caller>> clients;
  for (int i = 0; i < StoreServer::kMaxUnauthenticated + 10; i++)
    clients.push_back(std::make_unique<Caller>(store.server->address()));
  CHECK(!clients[0]->hear());  // it was displaced
  rank.say();
  REQUIRE(rank.hear());  // the store's proof
  CHECK(rank.client.established());
}

TEST_CASE("clients that send a whole hello do not displace a rank that has not sent its own yet") {
  const Store store;
  Caller rank(store.server->address());
  std::vector<std::unique_ptr<Caller>> clients;
  greet(store.server->address(), StoreServer::kMaxUnauthenticated + 10, &clients);
  rank.say();
  REQUIRE(rank.hear());
  CHECK(!clients[0]->hear());  // it was displaced
  rank.say();
  REQUIRE(rank.hear());
  CHECK(rank.client.established());
}

TEST_CASE("of clients that have sent a hello the first sender is displaced, whenever it connected") {
  const Store store;
  Caller rank(store.server->address());
  std::vector<std::unique_ptr<Caller>> clients;
  greet(store.server->address(), StoreServer::kMaxGreeted, &clients);
  rank.say();
  REQUIRE(rank.hear());
  greet(store.server->address(), StoreServer::kMaxGreeted / 2, &clients);
  rank.say();
  REQUIRE(rank.hear());
  CHECK(rank.client.established());
}

TEST_CASE("a rank that arrives when clients have filled the store joins at once") {
  // Runs in a process of its own, which is stopped while clients connect: it finds them all waiting.
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const Fd read_end(ends[0]), write_end(ends[1]);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Store store;
    const uint16_t port = store.server->address().port;
    if (::write(write_end.get(), &port, sizeof port) < 0) ::_exit(1);
    for (;;) ::pause();
  }
  uint16_t port = 0;
  CHECK(::read(read_end.get(), &port, sizeof port) == static_cast<ssize_t>(sizeof port));
  Address address;
  REQUIRE(parse_address(cat("tcp://127.0.0.1:", port), &address).ok());
  std::vector<std::unique_ptr<Caller>> clients;
  greet(address, StoreServer::kMaxUnauthenticated, &clients);
  ::kill(pid, SIGSTOP);
  REQUIRE(::waitpid(pid, nullptr, WUNTRACED) == pid);
  Caller rank(address);
  rank.say();
  for (int i = 0; i < 20; i++) {
    clients.push_back(std::make_unique<Caller>(address));
    clients.back()->say();
  }
  ::kill(pid, SIGCONT);
  const bool heard = rank.hear();
  if (heard) rank.say();
  const bool joined = heard && rank.hear() && rank.client.established();
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  CHECK(joined);
}

TEST_CASE("a listener for which nobody waits is not out of descriptors, when its process is") {
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    Address address, actual;
    Fd listener, first, accepted;
    bool in_use = false, exhausted = false;
    int error = 0;
    if (!parse_address("tcp://127.0.0.1:0", &address).ok()) ::_exit(2);
    if (!listen_at(address, false, &listener, &actual, &in_use).ok()) ::_exit(3);
    if (!connect_to(actual, &first, &error).ok()) ::_exit(4);
    const int lowest = ::dup(listener.get());  // the first descriptor that is free
    ::close(lowest);
    const rlimit fewer{static_cast<rlim_t>(lowest) + 1, static_cast<rlim_t>(lowest) + 1};
    if (::setrlimit(RLIMIT_NOFILE, &fewer) != 0) ::_exit(5);
    if (!wait_for(listener.get(), POLLIN, system_clock, in_ms(10'000))) ::_exit(6);
    if (!accept_from(listener.get(), &accepted, &exhausted).ok() || !accepted.valid() || exhausted)
      ::_exit(7);
    Fd none;
    if (!accept_from(listener.get(), &none, &exhausted).ok() || none.valid() || exhausted) ::_exit(8);
    ::_exit(0);
  }
  int ended = -1;
  ::waitpid(pid, &ended, 0);
  CHECK(ended == 0);
}

TEST_CASE("a store that runs out of descriptors makes room, and serves its members") {
  // Runs in a process of its own, because the limit applies to the process.
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const Fd read_end(ends[0]), write_end(ends[1]);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Store store;
    const rlimit fewer{open_descriptors() + 40, open_descriptors() + 40};
    const uint16_t port = store.server->address().port;
    if (::setrlimit(RLIMIT_NOFILE, &fewer) != 0 || ::write(write_end.get(), &port, sizeof port) < 0)
      ::_exit(1);
    for (;;) ::pause();
  }
  uint16_t port = 0;
  CHECK(::read(read_end.get(), &port, sizeof port) == static_cast<ssize_t>(sizeof port));
  const std::string store = cat("tcp://127.0.0.1:", port);
  {
    std::vector<Fd> silent_clients(100);
    for (Fd& each : silent_clients) {
      Address address;
      int error = 0;
      REQUIRE(parse_address(store, &address).ok());
      REQUIRE(connect_to(address, &each, &error).ok());
    }
    // At once, not when the clients' time limit is over.
    std::unique_ptr<StoreExchange> exchange;
    CHECK(StoreExchange::make(member(store, 0, 2, "early", true), system_clock, silent,
                              in_ms(StoreServer::kUnauthenticatedMs / 2), &exchange)
              .ok());
  }
  {
    const Flood flood({port}, test::good_traffic(kSecret));
    for (int job = 0; job < 5 || flood.connections() < kConnections; job++) {
      const auto failures =
          as_ranks(2, [&](int rank) { return meet(member(store, rank, 2, cat(job), true)); });
      CHECK(failures == kNone);
      if (!failures.empty()) break;
    }
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

namespace {

// As if every rank were on another host. Rank 2 is late: it connects to the others' ports, whose addresses it
// has just received, when they are under heavy attack.
class Elsewhere final : public Exchange {
 public:
  Elsewhere(Exchange& inner, std::unique_ptr<Flood>* flood, std::vector<uint16_t>* attacked)
      : inner_(inner), flood_(flood), attacked_(attacked) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override {
    WEFT_TRY(inner_.all_gather(mine, all, deadline));
    std::vector<uint16_t> ports;  // of the ranks that wait for rank 2
    for (Bytes& each : *all) {
      mesh::Advertisement advertisement;
      if (!mesh::decode(each, &advertisement)) continue;
      if (ports.size() < 2) ports.push_back(advertisement.tcp_port);
      advertisement.unix_name = "weft-test-on-another-host";
      advertisement.hosts = {"127.0.0.1"};
      each = mesh::encode(advertisement);
    }
    if (rank() != 2 || ports.empty()) return {};
    *attacked_ = ports;
    *flood_ = std::make_unique<Flood>(ports, test::good_traffic(kSecret));
    while ((*flood_)->connections() < kConnections) {
      if (deadline.expired(system_clock)) return Status::error(Code::kTimeout, "the flood is slow");
      std::this_thread::yield();
    }
    return {};
  }

 private:
  Exchange& inner_;
  std::unique_ptr<Flood>* const flood_;
  std::vector<uint16_t>* const attacked_;
};

}  // namespace

TEST_CASE(
    "ranks of several hosts connect with each other while 10,000 hostile connections reach their ports") {
  const Store store;
  std::unique_ptr<Flood> flood;
  std::vector<uint16_t> attacked;
  std::vector<std::unique_ptr<SocketMesh>> meshes(3);
  const auto failures = as_ranks(3, [&](int rank) -> Status {
    std::unique_ptr<StoreExchange> exchange;
    const StoreOptions options = member(store.server->address().text(), rank, 3, "job", true);
    WEFT_TRY(StoreExchange::make(options, system_clock, silent, in_ms(kHardBoundMs), &exchange));
    Elsewhere elsewhere(*exchange, &flood, &attacked);
    MeshOptions mesh_options;
    mesh_options.tcp = true;
    mesh_options.deadline = in_ms(2 * kHardBoundMs);
    WEFT_TRY(
        SocketMesh::make(elsewhere, mesh_options, system_clock, silent, &meshes[static_cast<size_t>(rank)]));
    exchange->finish();
    return {};
  });
  CHECK(failures == kNone);
  CHECK(attacked.size() == 2);
  for (const uint16_t port : attacked) CHECK(closed(port));
}

}  // namespace unit_unauthenticated
