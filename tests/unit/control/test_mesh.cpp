// lib/rendezvous/mesh: ranks connect with each other, pass descriptors and messages, and detect which ranks
// left and which died.
#include "rendezvous/mesh.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <fstream>

#include "free_port.h"
#include "mesh_rig.h"
#include "rendezvous/heartbeat.h"
#include "support/kernel.h"

namespace unit_mesh {

using namespace weft;
using namespace weft::test;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void write_byte(int fd) {
  REQUIRE(::write(fd, "x", 1) == 1);
}

// An exchange that reports rank 2's death late: a few polls after `over`.
class LateNews final : public Exchange {
 public:
  LateNews(Exchange& exchange, const std::atomic<bool>& over) : exchange_(exchange), over_(over) {}
  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override {
    return exchange_.all_gather(mine, all, deadline);
  }

 private:
  Status news() override {
    if (!over_ || ++looks_ < 4) return {};
    return Status::error(Code::kPeerFailed, "rank 2 is gone", Evidence::kReport).with_ranks({2});
  }

  Exchange& exchange_;
  const std::atomic<bool>& over_;
  int looks_ = 0;
};

// A rank alone, which keeps the addresses that it publishes.
class Alone final : public Exchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline /*deadline*/) override {
    if (!mine.empty()) REQUIRE(mesh::decode(mine, &published));
    all->assign(1, Bytes(mine.begin(), mine.end()));
    return {};
  }
  mesh::Advertisement published;
};

}  // namespace

TEST_CASE("a mesh publishes a port of WEFT_PORTS and the addresses of WEFT_INTERFACES") {
  Alone exchange;
  MeshOptions options;
  options.tcp = true;
  options.host = "10.9.9.9";
  options.deadline = in_ms(kPlenty);
  std::unique_ptr<SocketMesh> mesh;
  REQUIRE(SocketMesh::make(exchange, options, system_clock, silent, &mesh).ok());
  CHECK(exchange.published.hosts.front() == "10.9.9.9");

  const uint16_t port = free_port();
  options.network = {port, port, {"lo"}, {}};
  REQUIRE(SocketMesh::make(exchange, options, system_clock, silent, &mesh).ok());
  CHECK(exchange.published.tcp_port == port);
  CHECK(exchange.published.hosts.front() == "127.0.0.1");
  for (const std::string& host : exchange.published.hosts) CHECK((host == "127.0.0.1" || host == "::1"));

  Fd taken;
  Address address, actual;
  bool in_use = false;
  REQUIRE(parse_address(cat("tcp://127.0.0.1:", port), &address).ok());
  REQUIRE(listen_at(address, true, &taken, &actual, &in_use).ok());
  Status status = SocketMesh::make(exchange, options, system_clock, silent, &mesh);
  CHECK(status.code() == Code::kSystem);
  CHECK(contains(status.text(), cat("all ports of WEFT_PORTS=", port, "-", port, " are in use")));

  options.network = {0, 0, {"lo"}, {}, true, false};
  REQUIRE(SocketMesh::make(exchange, options, system_clock, silent, &mesh).ok());
  for (const std::string& host : exchange.published.hosts) CHECK(host == "127.0.0.1");
  options.network.ipv4 = false;
  options.network.ipv6 = true;
  status = SocketMesh::make(exchange, options, system_clock, silent, &mesh);  // ::1 may not be here
  CHECK((status.ok() ? exchange.published.hosts == std::vector<std::string>{"::1"}
                     : contains(status.text(),
                                "WEFT_INTERFACES leaves no interface that is up and has an IPv6 address")));

  options.network = {0, 0, {"none9"}, {}};
  status = SocketMesh::make(exchange, options, system_clock, silent, &mesh);
  CHECK(status.code() == Code::kArg);
  CHECK(contains(status.text(), "WEFT_INTERFACES names none9: this host has "));
  CHECK(contains(status.text(), "lo"));
  options.network = {0, 0, {"lo"}, {"lo"}};
  status = SocketMesh::make(exchange, options, system_clock, silent, &mesh);
  CHECK(contains(status.text(), "leaves no interface that is up"));
}

TEST_CASE("a process that may open too few files for its job learns at once which limit it needs") {
  class Large final : public Exchange {
   public:
    int rank() const override { return 0; }
    int size() const override { return 5'000; }
    Status all_gather(ByteView, std::vector<Bytes>*, Deadline) override {
      return Status::error(Code::kInternal, "it went on");
    }
  };
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit fewer{std::min<rlim_t>(before.rlim_cur, 1024), before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &fewer) == 0);
  Large exchange;
  std::unique_ptr<SocketMesh> mesh;
  const Status status = SocketMesh::make(exchange, {}, system_clock, silent, &mesh);
  CHECK(status.code() == Code::kSystem);
  CHECK(contains(status.text(), cat("this process may open ", fewer.rlim_cur, " files, has ")));
  CHECK(contains(status.text(), "raise `ulimit -n` to 5"));
  StoreOptions options = store_options("unix:@weft-test-descriptors", 0, 2);
  options.size = 5'000;
  std::unique_ptr<StoreExchange> store;
  CHECK(contains(StoreExchange::make(options, system_clock, silent, in_ms(kPlenty), &store).text(),
                 "rank 0 serves the store: this process may open"));
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

TEST_CASE("an interface that is left out gives no address") {
  std::vector<std::string> all, rest;
  REQUIRE(interface_hosts({}, &all).ok());
  std::ifstream list("/proc/net/dev");
  std::vector<std::string> out = {"none9"};  // need not exist
  for (std::string line; std::getline(list, line);) {
    const size_t colon = line.find(':'), begin = line.find_first_not_of(' ');
    if (colon != line.npos) out.push_back(line.substr(begin, colon - begin));
  }
  CHECK(interface_hosts({0, 0, {}, out}, &rest).code() == Code::kArg);
  CHECK(rest.empty());
  if (all.empty()) return;  // a host without a network
  REQUIRE(interface_hosts({0, 0, {}, {"none9"}}, &rest).ok());
  CHECK(rest == all);
}

TEST_CASE("1 to 8 ranks create a mesh, and every pair exchanges messages in order") {
  for (const int size : {1, 2, 5, 8}) {
    Meshes meshes = form_all(size);
    std::vector<Witness> witnesses(static_cast<size_t>(size));
    for (size_t from = 0; from < meshes.size(); from++) {
      meshes[from]->start(&witnesses[from]);
      for (int to = 0; to < size; to++) {
        for (int i = 0; i < 3; i++) meshes[from]->send(to, view(cat(from, " to ", to, ": ", i)));
      }
    }
    for (int to = 0; to < size; to++) {
      for (int from = 0; from < size; from++) {
        if (to == from) continue;
        const auto messages = witnesses[static_cast<size_t>(to)].messages(from, 3);
        REQUIRE(messages.size() == 3);
        CHECK(messages[2] == cat(from, " to ", to, ": 2"));
      }
      CHECK(meshes[static_cast<size_t>(to)]->same_host(size - 1));
      CHECK(!meshes[static_cast<size_t>(to)]->same_host(size));
      CHECK(!meshes[static_cast<size_t>(to)]->same_host(-1));
    }
    for (auto& mesh : meshes) mesh->stop();
  }
}

TEST_CASE("messages of the largest size arrive, before start as well, and larger ones are not sent") {
  Meshes meshes = form_all(2);
  const std::string large(Control::kMaxMessage, 'w');
  meshes[0]->send(1, view("early"));
  meshes[0]->send(1, view(large));
  meshes[0]->send(1, view(large + "x"));
  meshes[0]->send(1, view("last"));
  Witness sender, receiver;
  meshes[0]->start(&sender);
  meshes[1]->start(&receiver);
  const auto messages = receiver.messages(0, 3);
  REQUIRE(messages.size() == 3);
  CHECK(messages[0] == "early");
  CHECK(messages[1] == large);
  CHECK(messages[2] == "last");
  for (auto& mesh : meshes) mesh->stop();
}

TEST_CASE("descriptors reach the ranks of the same host, in order, amid other messages") {
  Meshes meshes = form_all(3);
  std::vector<Fd> memory;
  for (int i = 0; i < 2; i++) {
    memory.emplace_back(memory_file());
    REQUIRE(::ftruncate(memory.back().get(), 1000 + i) == 0);
    for (const int to : {0, 2}) REQUIRE(meshes[1]->send_fd(to, memory.back().get()).ok());
    for (const int to : {0, 2}) meshes[1]->send(to, view("between"));
  }
  for (const size_t to : {size_t{0}, size_t{2}}) {
    for (int i = 0; i < 2; i++) {
      Fd received;
      const Status status = meshes[to]->receive_fd(1, &received, in_ms(kPlenty));
      INFO(status.text());
      REQUIRE(status.ok());
      CHECK(::lseek(received.get(), 0, SEEK_END) == 1000 + i);
    }
    Witness witness;
    meshes[to]->start(&witness);
    CHECK(witness.messages(1, 2).size() == 2);
    meshes[to]->stop();
  }
  Fd none;
  CHECK(meshes[0]->receive_fd(2, &none, in_ms(1)).code() == Code::kTimeout);
  CHECK(meshes[0]->receive_fd(0, &none, in_ms(1)).code() == Code::kArg);
  CHECK(meshes[0]->send_fd(7, 0).code() == Code::kArg);
}

TEST_CASE("a rank that says goodbye has left, one that only closes is lost") {
  Meshes meshes = form_all(3);
  Witness witness;
  meshes[0]->start(&witness);
  meshes[1]->send(0, view("bye"));
  meshes[1]->leave();
  meshes[1]->send(0, view("after the farewell"));
  meshes[1].reset();
  CHECK(witness.left(1));
  CHECK(witness.messages(1, 1).size() == 1);
  meshes[2].reset();
  const Status why = witness.lost(2);
  CHECK(why.code() == Code::kPeerFailed);
  CHECK(why.info().ranks == std::vector<int>{2});
  CHECK(why.info().evidence == Evidence::kConnection);
  CHECK(witness.lost_count() == 1);  // not rank 1
  meshes[0]->send(1, view("nobody is there"));
  meshes[0]->stop();
}

TEST_CASE("a rank that closed before start is reported after start") {
  Meshes meshes = form_all(2);
  meshes[1]->send(0, view("last words"));
  meshes[1].reset();
  Fd none;
  const Status status = meshes[0]->receive_fd(1, &none, in_ms(kPlenty));
  CHECK(status.code() == Code::kPeerFailed);
  CHECK(status.info().ranks == std::vector<int>{1});
  Witness witness;
  meshes[0]->start(&witness);
  CHECK(witness.messages(1, 1).at(0) == "last words");
  CHECK(witness.lost(1).code() == Code::kPeerFailed);
  meshes[0]->stop();
}

TEST_CASE("stop inside a call of the listener returns, and nothing is called afterwards") {
  Meshes meshes = form_all(2);
  Witness witness;
  witness.on_any_message = [&] { meshes[0]->stop(); };
  meshes[1]->send(0, view("one"));
  meshes[1]->send(0, view("two"));
  meshes[0]->start(&witness);
  CHECK(witness.messages(1, 1).size() == 1);
  meshes[0]->stop();
  meshes[1].reset();
  CHECK(witness.lost_count() == 0);
  CHECK(witness.messages(1, 1).size() == 1);
}

TEST_CASE("a mesh may be destroyed inside a call of its listener") {
  Meshes meshes = form_all(2);
  Witness witness;
  std::atomic<bool> destroyed{false};
  witness.on_any_message = [&] {
    meshes[0].reset();
    destroyed = true;
  };
  Witness other;
  meshes[1]->start(&other);
  meshes[0]->start(&witness);
  meshes[1]->send(0, view("go"));
  CHECK(other.lost(0).code() == Code::kPeerFailed);
  while (!destroyed) std::this_thread::yield();
  meshes[1]->stop();
}

TEST_CASE("many threads send at once and messages stay intact") {
  Meshes meshes = form_all(2);
  Witness sender, receiver;
  meshes[0]->start(&sender);
  meshes[1]->start(&receiver);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; thread++) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; i++) meshes[0]->send(1, view(std::string(static_cast<size_t>(i), 'a')));
    });
  }
  for (std::thread& thread : threads) thread.join();
  size_t bytes = 0;
  for (const std::string& message : receiver.messages(0, 800)) bytes += message.size();
  CHECK(bytes == 4 * 199 * 200 / 2);
  for (auto& mesh : meshes) mesh->stop();
}

TEST_CASE("a peer that does not read costs bounded memory and no waiting") {
  Meshes meshes = form_all(2);
  const std::string large(Control::kMaxMessage, 'w');
  for (int i = 0; i < 64; i++) meshes[0]->send(1, view(large));  // rank 1 has not started
  Witness witness;
  meshes[0]->start(&witness);
  meshes[0]->leave();  // bounded: not all of it can be written
  meshes[0]->stop();
}

TEST_CASE("a killed process is detected at once, with its process or connection as evidence") {
  const std::string store = unique_store();
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::unique_ptr<SocketMesh> mesh;
    Witness witness;
    if (form(store, 1, 3, {}, &mesh).ok()) {
      mesh->start(&witness);
      (void)!::write(ready[1], "x", 1);
      ::pause();
    }
    ::_exit(1);
  }
  Meshes meshes(3);
  Status formed[2];
  std::thread second([&] { formed[1] = form(store, 2, 3, {}, &meshes[2]); });
  formed[0] = form(store, 0, 3, {}, &meshes[0]);
  second.join();
  for (const Status& status : formed) {
    INFO(status.text());
    REQUIRE(status.ok());
  }
  Witness first, third;
  meshes[0]->start(&first);
  meshes[2]->start(&third);
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  REQUIRE(::kill(child, SIGKILL) == 0);
  for (Witness* witness : {&first, &third}) {
    const Status why = witness->lost(1);
    INFO(why.text());
    CHECK(why.info().ranks == std::vector<int>{1});
    CHECK((why.info().evidence == Evidence::kProcess || why.info().evidence == Evidence::kConnection));
  }
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  meshes[0]->stop();
  meshes[2]->stop();
}

TEST_CASE("the death of a process whose forked child keeps the connection open is detected by its pidfd") {
  if (!has_pidfds()) WEFT_SKIP("the kernel refuses pidfd_open");
  const std::string store = unique_store();
  int ready[2], release[2];
  REQUIRE(::pipe(ready) == 0);
  REQUIRE(::pipe(release) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::unique_ptr<SocketMesh> mesh;
    if (form(store, 1, 2, {}, &mesh).ok()) {
      if (::fork() == 0) {  // holds copies of all descriptors until the test ends
        ::close(release[1]);
        char byte;
        (void)!::read(release[0], &byte, 1);
        ::_exit(0);
      }
      (void)!::write(ready[1], "x", 1);
      ::pause();
    }
    ::_exit(1);
  }
  ::close(release[0]);
  std::unique_ptr<SocketMesh> mesh;
  REQUIRE(form(store, 0, 2, {}, &mesh).ok());
  Witness witness;
  mesh->start(&witness);
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  REQUIRE(::kill(child, SIGKILL) == 0);
  const Status why = witness.lost(1);
  CHECK(why.info().evidence == Evidence::kProcess);
  CHECK(why.text().find("the process of rank 1") != std::string::npos);
  write_byte(release[1]);
  ::waitpid(child, nullptr, 0);
  for (const int fd : {ready[0], ready[1], release[1]}) ::close(fd);
  mesh->stop();
}

TEST_CASE("a rank that dies or gives up during the mesh's creation fails the others, by name") {
  const std::string store = unique_store();
  std::vector<Status> results(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; rank++) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<SocketMesh> mesh;
      results[rank] = form(store, static_cast<int>(rank), 3, {}, &mesh);
    });
  }
  {
    std::unique_ptr<StoreExchange> exchange;
    REQUIRE(StoreExchange::make(store_options(store, 2, 3), system_clock, silent, in_ms(kPlenty), &exchange)
                .ok());
    mesh::Advertisement nowhere;
    nowhere.unix_name = "weft-test-nobody-listens-here";
    std::vector<Bytes> all;
    REQUIRE(exchange->all_gather(mesh::encode(nowhere), &all, in_ms(kPlenty)).ok());
  }  // gone after it has published its address
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) {
    INFO(status.text());
    CHECK(status.code() == Code::kPeerFailed);
    CHECK(status.info().ranks == std::vector<int>{2});
  }
}

TEST_CASE("a rank that gives up because another one died is not taken for the cause") {
  const std::string store = unique_store();
  std::atomic<bool> over{false};
  Status result;
  std::unique_ptr<StoreExchange> exchanges[3];
  std::thread joins[3];
  for (int rank = 0; rank < 3; rank++) {
    joins[rank] = std::thread([&, rank] {
      StoreExchange::make(store_options(store, rank, 3), system_clock, silent, in_ms(kPlenty),
                          &exchanges[rank])
          .ok();
    });
  }
  for (std::thread& join : joins) join.join();
  for (const auto& exchange : exchanges) REQUIRE(exchange != nullptr);
  std::thread named([&] {
    std::unique_ptr<SocketMesh> mesh;
    LateNews exchange(*exchanges[1], over);
    MeshOptions options;
    options.deadline = in_ms(kPlenty);
    result = SocketMesh::make(exchange, options, system_clock, silent, &mesh);
  });
  Status given_up;
  std::thread gives_up([&] {
    std::unique_ptr<SocketMesh> mesh;
    MeshOptions options;
    options.deadline = in_ms(2000);
    given_up = SocketMesh::make(*exchanges[0], options, system_clock, silent, &mesh);
    over = true;
  });
  mesh::Advertisement nowhere;
  nowhere.unix_name = "weft-test-nobody-listens-here";
  std::vector<Bytes> all;
  CHECK(exchanges[2]->all_gather(mesh::encode(nowhere), &all, in_ms(kPlenty)).ok());
  named.join();
  gives_up.join();
  INFO(result.text());
  CHECK(!given_up.ok());
  CHECK(result.code() == Code::kPeerFailed);
  CHECK(result.info().ranks == std::vector<int>{2});
}

TEST_CASE("a rank that cannot be reached is named at the deadline, with the reason") {
  const std::string store = unique_store();
  Status result;
  std::thread thread([&] {
    std::unique_ptr<StoreExchange> exchange;
    std::unique_ptr<SocketMesh> mesh;
    result = StoreExchange::make(store_options(store, 1, 2), system_clock, silent, in_ms(kPlenty), &exchange);
    MeshOptions options;
    options.deadline = in_ms(2000);
    if (result.ok()) result = SocketMesh::make(*exchange, options, system_clock, silent, &mesh);
  });
  std::unique_ptr<StoreExchange> exchange;
  REQUIRE(
      StoreExchange::make(store_options(store, 0, 2), system_clock, silent, in_ms(kPlenty), &exchange).ok());
  mesh::Advertisement nowhere;
  nowhere.unix_name = "weft-test-nobody-listens-here";
  std::vector<Bytes> all;
  CHECK(exchange->all_gather(mesh::encode(nowhere), &all, in_ms(kPlenty)).ok());
  thread.join();
  INFO(result.text());
  CHECK(result.code() == Code::kTimeout);
  CHECK(result.info().ranks == std::vector<int>{0});
  CHECK(result.text().find("refused") != std::string::npos);
}

TEST_CASE("a holder of the key that gives a number that is not its own is not let in") {
  const std::string store = unique_store();
  Status result;
  std::unique_ptr<SocketMesh> mesh;
  std::thread thread([&] { result = form(store, 0, 2, {}, &mesh); });
  std::unique_ptr<StoreExchange> exchange;
  REQUIRE(
      StoreExchange::make(store_options(store, 1, 2), system_clock, silent, in_ms(kPlenty), &exchange).ok());
  mesh::Advertisement mine, theirs;
  mine.unix_name = "weft-test-nobody-listens-here";
  std::vector<Bytes> all;
  CHECK(exchange->all_gather(mesh::encode(mine), &all, in_ms(kPlenty)).ok());
  REQUIRE(mesh::decode(all[0], &theirs));
  std::vector<Connection> connections;
  const auto answer_to = [&](int rank) {
    Address address;
    address.kind = Address::Kind::kUnix;
    address.name = theirs.unix_name;
    Fd fd;
    int error = 0;
    REQUIRE(connect_to(address, &fd, &error).ok());
    Connection& connection =
        connections.emplace_back(std::move(fd), Role::kClient, AuthKey{theirs.key, true});
    connection.send(mesh::hello_frame(rank));
    std::vector<Bytes> frames;
    bool closed = false;
    while (frames.empty() && !closed &&
           wait_for(connection.fd(), connection.events(), system_clock, in_ms(kPlenty))) {
      connection.flush();
      REQUIRE(connection.read(&frames, &closed).ok());
    }
    return frames.empty() ? std::nullopt : mesh::hello_rank(frames[0]);
  };
  for (const int wrong : {-1, 0, 2, INT32_MAX}) CHECK(!answer_to(wrong));
  CHECK(answer_to(1) == 0);
  CHECK(exchange->all_gather({}, &all, in_ms(kPlenty)).ok());
  thread.join();
  INFO(result.text());
  CHECK(result.ok());
}

TEST_CASE("an advertisement with a heartbeat timeout that no rank can have is refused") {
  mesh::Advertisement good, read;
  good.unix_name = "a name";
  for (const int64_t timeout_ms : {int64_t{-1}, Heartbeat::kLeastMs, INT64_MAX}) {
    good.heartbeat_timeout_ms = timeout_ms;
    CHECK(mesh::decode(mesh::encode(good), &read));
    CHECK(read.heartbeat_timeout_ms == timeout_ms);
  }
  for (const int64_t timeout_ms : {int64_t{0}, int64_t{-2}, Heartbeat::kLeastMs - 1, INT64_MIN}) {
    good.heartbeat_timeout_ms = timeout_ms;
    CHECK(!mesh::decode(mesh::encode(good), &read));
  }
}

TEST_CASE("ranks of different versions that meet over the program's channel report both versions") {
  for (const Versions theirs :
       {Versions{kProtocolVersion + 1, kWeftVersion}, Versions{kProtocolVersion, 20300}}) {
    const std::string store = unique_store();
    Status result;
    std::thread thread([&] {
      std::unique_ptr<SocketMesh> mesh;
      result = form(store, 1, 2, {}, &mesh);
    });
    std::unique_ptr<StoreExchange> exchange;
    REQUIRE(StoreExchange::make(store_options(store, 0, 2), system_clock, silent, in_ms(kPlenty), &exchange)
                .ok());
    // Only the versions at the beginning are the same in all versions.
    Bytes other = mesh::encode({theirs, "another layout follows", 0, {}, -1, {}});
    other.resize(other.size() - 7);
    std::vector<Bytes> all;
    CHECK(exchange->all_gather(other, &all, in_ms(kPlenty)).ok());
    thread.join();
    CHECK(result.code() == Code::kVersion);
    CHECK(result.info().ranks == std::vector<int>{0});
    CHECK(result.text() == cat("rank 0 is ", version_text(theirs), ", rank 1 is ", version_text({}),
                               ": install the same Weft on all hosts"));
  }
}

TEST_CASE("ranks that share no unix sockets connect over TCP and hand over no descriptors") {
  Meshes meshes = form_all({Wiring{-1, true}, Wiring{-1, true}});
  CHECK(!meshes[0]->same_host(1));
  CHECK(!meshes[1]->same_host(0));
  CHECK(meshes[0]->send_fd(1, 0).code() == Code::kArg);
  Witness first, second;
  meshes[0]->start(&first);
  meshes[1]->start(&second);
  meshes[0]->send(1, view("over TCP"));
  CHECK(second.messages(0, 1).at(0) == "over TCP");
  meshes[1]->leave();
  meshes[1].reset();
  CHECK(first.left(1));
  meshes[0]->stop();
}

}  // namespace unit_mesh
