// lib/rendezvous/store_*: ranks bootstrap; unauthenticated clients and misconfigured ranks get an error, and
// never disturb the others.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "base/text.h"
#include "free_port.h"
#include "rendezvous/callback_exchange.h"
#include "rendezvous/socket.h"
#include "rendezvous/store_exchange.h"
#include "support/catch.h"
#include "support/users.h"

namespace unit_store {

using namespace weft;

namespace {

SystemClock system_clock;
Log silent;

ByteView view(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
Deadline in_ms(int64_t ms) {
  return Deadline::after(system_clock, ms, 0);
}
constexpr int64_t kPlenty = 30'000;
const AuthKey kSecret = AuthKey::from_secret(view("a secret of the job"));

// A store of the test's own, on a free loopback port or a unix name.
struct Store {
  explicit Store(const AuthKey& key = kSecret, const std::string& where = "tcp://127.0.0.1:0",
                 Log& log = silent, bool one_rendezvous = false) {
    Address address;
    REQUIRE(parse_address(where, &address).ok());
    bool in_use = false;
    const Status status =
        StoreServer::start({address, key, {}, one_rendezvous}, system_clock, log, &server, &in_use);
    INFO(status.text());
    REQUIRE(status.ok());
  }
  StoreOptions member(int rank, int size, const std::string& job = "job") const {
    StoreOptions options;
    options.rank = rank;
    options.size = size;
    options.store = server->address().text();
    options.key = kSecret;
    options.job = job;
    options.external = true;
    return options;
  }
  std::unique_ptr<StoreServer> server;
};

using Meeting = std::unique_ptr<StoreExchange>;

Meeting joined(const StoreOptions& options) {
  Meeting exchange;
  const Status status = StoreExchange::make(options, system_clock, silent, in_ms(kPlenty), &exchange);
  INFO(status.text());
  REQUIRE(status.ok());
  return exchange;
}

Status join_error(const StoreOptions& options, int64_t ms = kPlenty) {
  Meeting exchange;
  return StoreExchange::make(options, system_clock, silent, in_ms(ms), &exchange);
}

// Runs body(rank) on a thread for each rank and collects the results.
std::vector<Status> as_ranks(int size, const std::function<Status(int)>& body) {
  std::vector<Status> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; rank++) {
    threads.emplace_back([&, rank] { results[static_cast<size_t>(rank)] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Runs three rounds, and checks what each rank receives.
Status three_rounds(Exchange& exchange, size_t bytes) {
  for (int round = 0; round < 3; round++) {
    const auto content = [&](int rank) {
      std::string text = cat("round ", round, " of rank ", rank);
      text.resize(std::max(text.size(), rank == 1 ? bytes : 0), 'x');
      return text;
    };
    std::vector<Bytes> all;
    WEFT_TRY(exchange.all_gather(view(content(exchange.rank())), &all, in_ms(kPlenty)));
    for (int rank = 0; rank < exchange.size(); rank++) {
      if (text_of(all.at(static_cast<size_t>(rank))) == content(rank)) continue;
      return Status::error(Code::kInternal, cat("wrong bytes of rank ", rank, " in round ", round));
    }
  }
  exchange.finish();
  return {};
}

Status meet(const StoreOptions& options, size_t bytes = 0) {
  Meeting exchange;
  WEFT_TRY(StoreExchange::make(options, system_clock, silent, in_ms(kPlenty), &exchange));
  return three_rounds(*exchange, bytes);
}

void check_all_ok(const std::vector<Status>& results) {
  for (const Status& status : results) {
    INFO(status.text());
    CHECK(status.ok());
  }
}

// A socket of a client that is no Weft process.
struct UnauthenticatedClient {
  explicit UnauthenticatedClient(const Address& address) {
    int error = 0;
    REQUIRE(connect_to(address, &fd, &error).ok());
    REQUIRE(wait_for(fd.get(), POLLOUT, system_clock, in_ms(kPlenty)));
  }
  void say(std::string_view text) {
    REQUIRE(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  }
  // Reads until the other side ends the connection; false if it does not in time.
  bool ends(std::string* heard) {
    for (;;) {
      if (!wait_for(fd.get(), POLLIN, system_clock, in_ms(kPlenty))) return false;
      char bytes[256];
      const ssize_t got = ::recv(fd.get(), bytes, sizeof bytes, 0);
      if (got <= 0) return true;
      heard->append(bytes, static_cast<size_t>(got));
    }
  }
  Fd fd;
};

std::string unique_name() {
  const Key key = random_key();
  std::string name = "weft-test-";
  for (size_t i = 0; i < 8; i++) name += cat(static_cast<int>(key[i]), ".");
  return name;
}

}  // namespace

TEST_CASE("a store that other hosts reach needs a secret") {
  StoreOptions options;
  options.size = 2;
  options.store = "tcp://0.0.0.0:0";
  options.key = AuthKey::open();
  CHECK(join_error(options).code() == Code::kAuth);
  options.store = "tcp://127.0.0.1:0";
  CHECK(join_error(options).code() == Code::kArg);
}

TEST_CASE("2 to 8 ranks bootstrap in a store of their own and gather small and large bytes") {
  for (const int size : {1, 2, 3, 8}) {
    const std::string name = unique_name();
    for (const size_t bytes : {size_t{0}, StoreExchange::kMaxBytes}) {
      INFO("size " << size << ", bytes " << bytes);
      check_all_ok(as_ranks(size, [&](int rank) {
        StoreOptions options;
        options.rank = rank;
        options.size = size;
        options.store = "unix:@" + name;  // the same address again: stores follow each other there
        options.key = AuthKey::open();
        return meet(options, bytes);
      }));
    }
  }
}

TEST_CASE("a job creates several communicators in sequence without waiting for each other") {
  const std::string name = unique_name();
  check_all_ok(as_ranks(3, [&](int rank) -> Status {
    for (uint64_t sequence = 0; sequence < 10; sequence++) {
      StoreOptions options;
      options.rank = rank;
      options.size = 3;
      options.store = "unix:@" + name;
      options.key = kSecret;
      options.sequence = sequence;
      WEFT_TRY(meet(options));
    }
    return {};
  }));
}

TEST_CASE("jobs and communicators of one external store do not see each other") {
  const Store store;
  check_all_ok(as_ranks(8, [&](int thread) {
    StoreOptions options = store.member(thread % 2, 2, thread < 4 ? "one" : "two");
    options.sequence = static_cast<uint64_t>(thread / 2 % 2);
    return meet(options);
  }));
}

TEST_CASE("an all-gather over the program's callback checks what it gets") {
  struct Program {
    int calls = 0;
    uint64_t lie = 0;
    int32_t result = 0;
  } program;
  const auto all_gather = [](void* user_data, const void* mine, uint64_t size, void* all) -> int32_t {
    auto* self = static_cast<Program*>(user_data);
    auto* out = static_cast<std::byte*>(all);
    for (int rank = 0; rank < 2; rank++) std::memcpy(out + static_cast<uint64_t>(rank) * size, mine, size);
    if (self->calls++ == 0 && self->lie != 0) std::memcpy(out, &self->lie, sizeof self->lie);
    return self->result;
  };
  CallbackExchange exchange(1, 2, all_gather, &program, system_clock);
  std::vector<Bytes> all;
  REQUIRE(exchange.all_gather(view("hello"), &all, in_ms(kPlenty)).ok());
  CHECK(text_of(all.at(0)) == "hello");
  REQUIRE(exchange.all_gather({}, &all, in_ms(kPlenty)).ok());
  CHECK(all.at(1).empty());

  program.calls = 0;
  program.lie = uint64_t{1} << 40;
  const Status status = exchange.all_gather(view("hello"), &all, in_ms(kPlenty));
  CHECK(status.code() == Code::kMismatch);
  CHECK(status.info().ranks == std::vector<int>{0});

  program.calls = 0;
  program.lie = CallbackExchange::kRefused;
  const Status refused = exchange.all_gather(view("hello"), &all, in_ms(kPlenty));
  CHECK(refused.text() == "rank 0 was refused: see its error");
  CHECK(program.calls == 1);
  program.result = 7;
  CHECK(exchange.all_gather(view("x"), &all, in_ms(kPlenty)).code() == Code::kPeerFailed);
}

TEST_CASE("a missing rank is named by all that waited for it") {
  const Store store;
  const auto results = as_ranks(3, [&](int rank) -> Status {
    Meeting exchange;
    WEFT_TRY(StoreExchange::make(store.member(rank, 5), system_clock, silent, in_ms(kPlenty), &exchange));
    std::vector<Bytes> all;
    return exchange->all_gather({}, &all, in_ms(2000 + 100 * rank));
  });
  for (const Status& status : results) {
    INFO(status.text());
    CHECK(status.code() == Code::kTimeout);
    CHECK(status.info().ranks == std::vector<int>{3, 4});
  }
}

TEST_CASE("a missing rank 0 is named") {
  StoreOptions options;
  options.rank = 1;
  options.size = 2;
  options.store = "unix:@" + unique_name();
  options.key = kSecret;
  const Status status = join_error(options, 200);
  CHECK(status.code() == Code::kTimeout);
  CHECK(status.info().ranks == std::vector<int>{0});
}

TEST_CASE("wrong joiners are told their mistake, and the job forms without them") {
  const Store store;
  std::vector<Meeting> members;
  members.push_back(joined(store.member(0, 2)));

  Status status = join_error(store.member(0, 2));
  CHECK(status.code() == Code::kMismatch);
  CHECK(contains(status.text(), "rank 0 has joined already"));
  StoreOptions wrong_secret = store.member(1, 2);
  wrong_secret.key = AuthKey::from_secret(view("another secret!!"));
  CHECK(join_error(wrong_secret).code() == Code::kAuth);
  StoreOptions no_secret = store.member(1, 2);
  no_secret.key = AuthKey::open();
  status = join_error(no_secret);
  CHECK(status.code() == Code::kAuth);
  CHECK(contains(status.text(), "this side has none"));

  members.push_back(joined(store.member(1, 2)));
  check_all_ok(as_ranks(2, [&](int rank) { return three_rounds(*members[static_cast<size_t>(rank)], 0); }));
}

TEST_CASE("ranks that wait in vain get the reason why another one was refused") {
  const Store store;
  const Meeting exchange = joined(store.member(0, 2));
  CHECK(join_error(store.member(0, 2)).code() == Code::kMismatch);
  std::vector<Bytes> all;
  const Status status = exchange->all_gather({}, &all, in_ms(300));
  CHECK(status.code() == Code::kTimeout);
  CHECK(contains(status.text(), "rank 0 has joined already"));
}

TEST_CASE("ranks that wait in vain get the number of connections that the store refused, and why") {
  const Store store;
  const Meeting exchange = joined(store.member(0, 2));
  StoreOptions wrong_secret = store.member(1, 2);
  wrong_secret.key = AuthKey::from_secret(view("another secret!!"));
  for (int i = 0; i < 2; i++) CHECK(join_error(wrong_secret).code() == Code::kAuth);
  std::vector<Bytes> all;
  const Status status = exchange->all_gather({}, &all, in_ms(300));
  CHECK(status.code() == Code::kTimeout);
  INFO(status.text());
  CHECK(contains(status.text(), "the store has refused 2 connections, the last from "));
  CHECK(contains(status.text(), "secret"));
}

TEST_CASE("a rank with a different size fails the ranks in bootstrap at once, and no created communicator") {
  const Store store;
  std::vector<Meeting> members;
  members.push_back(joined(store.member(0, 3)));
  members.push_back(joined(store.member(1, 3)));
  const Status refused = join_error(store.member(2, 4));
  const std::string text = "rank 2 says that there are 4 ranks, rank 0 says 3";
  CHECK(refused.code() == Code::kMismatch);
  CHECK(contains(refused.text(), text));
  CHECK(contains(refused.text(), "WEFT_SIZE"));
  for (const Meeting& member : members) {
    std::vector<Bytes> all;
    const Status status = member->all_gather({}, &all, in_ms(kPlenty));
    CHECK(status.code() == Code::kMismatch);
    CHECK(contains(status.text(), text));
    CHECK(status.info().ranks == std::vector<int>{2});
  }

  members.clear();
  for (int rank = 0; rank < 2; rank++) members.push_back(joined(store.member(rank, 2)));
  CHECK(contains(join_error(store.member(1, 3)).text(), "a communicator of 2 ranks is complete"));
  check_all_ok(as_ranks(2, [&](int rank) { return three_rounds(*members[static_cast<size_t>(rank)], 0); }));
}

TEST_CASE("invalid messages of members and ranks out of range are refused by the store") {
  const Store store;
  const auto attempt = [&](const Bytes& frame) {
    int error = 0;
    Fd fd;
    REQUIRE(connect_to(store.server->address(), &fd, &error).ok());
    Connection connection(std::move(fd), Role::kClient, kSecret);
    connection.send(frame);
    std::vector<Bytes> frames;
    bool closed = false;
    while (!closed && wait_for(connection.fd(), connection.events(), system_clock, in_ms(kPlenty))) {
      connection.flush();
      REQUIRE(connection.read(&frames, &closed).ok());
    }
    REQUIRE(frames.size() == 1);
    Status status;
    REQUIRE(store::decode_failed(frames[0], &status));
    return status;
  };
  CHECK(attempt(store::encode(store::Join{"job", 0, 2, 2})).code() == Code::kArg);
  CHECK(attempt(store::encode(store::Join{"job", 0, -1, 2})).code() == Code::kArg);
  CHECK(attempt(store::encode(store::Join{"job", 0, 0, 0})).code() == Code::kArg);
  CHECK(attempt(store::encode(store::Join{"job", 0, 0, INT32_MAX})).code() == Code::kArg);
  CHECK(attempt(store::encode(store::Give{0, {}})).code() == Code::kAuth);  // before joining
  CHECK(attempt({}).code() == Code::kAuth);
  CHECK(meet(store.member(0, 1)).ok());
}

TEST_CASE("a member that sends data of another round is refused, and fails its group") {
  const Store store;
  Meeting other = joined(store.member(0, 2));
  int error = 0;
  Fd fd;
  REQUIRE(connect_to(store.server->address(), &fd, &error).ok());
  Connection connection(std::move(fd), Role::kClient, kSecret);
  connection.send(store::encode(store::Join{"job", 0, 1, 2}));
  connection.send(store::encode(store::Give{1, {}}));  // the group is in round 0
  std::vector<Bytes> frames;
  bool closed = false;
  while (!closed && wait_for(connection.fd(), connection.events(), system_clock, in_ms(kPlenty))) {
    connection.flush();
    REQUIRE(connection.read(&frames, &closed).ok());
  }
  REQUIRE(frames.size() == 2);
  Status status;
  REQUIRE(store::decode_failed(frames[1], &status));
  CHECK(contains(status.text(), "rank 1 sent data of round 1"));
  std::vector<Bytes> all;
  CHECK(other->all_gather({}, &all, in_ms(kPlenty)).info().ranks == std::vector<int>{1});
}

TEST_CASE("the number of a rank that has left its group stays taken") {
  const Store store;
  Meeting stays = joined(store.member(0, 2)), leaves = joined(store.member(1, 2));
  Status left;
  std::thread other([&] { left = three_rounds(*leaves, 0); });
  CHECK(three_rounds(*stays, 0).ok());
  other.join();
  CHECK(left.ok());
  leaves.reset();
  const Status status = join_error(store.member(1, 2));
  CHECK(status.code() == Code::kMismatch);
  CHECK(contains(status.text(), "rank 1 has joined already"));
}

TEST_CASE("HTTP clients, TLS hellos, port scanners and slow or silent clients do not disturb the job") {
  const Store store;
  const Address address = store.server->address();
  std::string heard;
  UnauthenticatedClient http(address), tls(address), slow(address), half_open(address);
  http.say("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  tls.say(std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  slow.say("\x89");
  for (int i = 0; i < 50; i++) UnauthenticatedClient scanner(address);

  const Meeting first = joined(store.member(0, 2));
  std::vector<std::unique_ptr<UnauthenticatedClient>> crowd;  // more than the store keeps
  for (int i = 0; i < StoreServer::kMaxUnauthenticated + 10; i++)
    crowd.push_back(std::make_unique<UnauthenticatedClient>(address));
  const Meeting second = joined(store.member(1, 2));
  check_all_ok(as_ranks(2, [&](int rank) { return three_rounds(rank == 0 ? *first : *second, 0); }));

  CHECK(http.ends(&heard));
  CHECK(tls.ends(&heard));
  CHECK(slow.ends(&heard));
  CHECK(half_open.ends(&heard));
  CHECK(heard.empty());  // unauthenticated clients get no data
}

TEST_CASE("a different version of Weft is refused with both versions in its error") {
  const Store store;
  UnauthenticatedClient other(store.server->address());
  Hello hello;
  hello.protocol = kProtocolVersion + 1;
  hello.secret = true;
  other.say(text_of(encode_hello(hello)));
  std::string heard;
  CHECK(other.ends(&heard));
  CHECK(heard.size() == Hello::kBytes);  // so that the other side can report it too
}

TEST_CASE("a listener at the store's address that is no store is an error at once") {
  Fd listener;
  Address address, actual;
  bool in_use = false;
  REQUIRE(parse_address("tcp://127.0.0.1:0", &address).ok());
  REQUIRE(listen_at(address, false, &listener, &actual, &in_use).ok());
  std::thread web([&] {
    if (!wait_for(listener.get(), POLLIN, system_clock, in_ms(kPlenty))) return;
    Fd client;
    bool exhausted = false;
    if (!accept_from(listener.get(), &client, &exhausted).ok()) return;
    const std::string_view answer = "HTTP/1.1 400 Bad Request\r\n\r\n";
    ::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
    wait_for(client.get(), POLLRDHUP, system_clock, in_ms(kPlenty));
  });
  StoreOptions options;
  options.rank = 1;
  options.size = 2;
  options.store = actual.text();
  options.key = kSecret;
  const Status status = join_error(options);
  web.join();
  CHECK(status.code() == Code::kAuth);
  CHECK(contains(status.text(), "does not speak Weft's protocol"));
  CHECK(contains(status.text(), actual.text()));
}

TEST_CASE("a member that leaves during bootstrap fails the others at once, by name") {
  const Store store;
  Meeting waiting = joined(store.member(0, 3));
  Meeting dying = joined(store.member(2, 3));
  Status status;
  std::thread waiter([&] {
    std::vector<Bytes> all;
    status = waiting->all_gather({}, &all, in_ms(kPlenty));
  });
  dying.reset();  // without finish()
  waiter.join();
  CHECK(status.code() == Code::kPeerFailed);
  CHECK(status.info().ranks == std::vector<int>{2});
  CHECK(status.info().evidence == Evidence::kConnection);
  CHECK(contains(status.text(), "rank 2"));
}

TEST_CASE("a member that arrives just when another one leaves gets the error too") {
  // The store blocks in its log, so that one member's end and another one's arrival wait for it together.
  std::promise<void> stands, goes_on;
  bool stood = false;
  Log log(
      [&, may_go_on = goes_on.get_future().share()](LogLevel, const char* line) {
        if (stood || !contains(line, "refused")) return;
        stood = true;
        stands.set_value();
        may_go_on.wait_for(std::chrono::seconds(10));
      },
      LogLevel::kInfo);
  const Store store(kSecret, "unix:@" + unique_name(), log);
  const auto read = [](Connection& connection, std::vector<Bytes>* frames) {
    bool closed = false;
    REQUIRE(wait_for(connection.fd(), connection.events(), system_clock, in_ms(kPlenty)));
    connection.flush();
    REQUIRE(connection.read(frames, &closed).ok());
    return !closed;
  };
  Meeting dying = joined(store.member(0, 2));
  Fd fd;
  int error = 0;
  REQUIRE(connect_to(store.server->address(), &fd, &error).ok());
  Connection late(std::move(fd), Role::kClient, kSecret);
  std::vector<Bytes> frames;
  while (!late.established()) REQUIRE(read(late, &frames));
  UnauthenticatedClient unauthenticated(store.server->address());
  unauthenticated.say("GET / HTTP/1.1\r\n\r\n");
  REQUIRE(stands.get_future().wait_for(std::chrono::seconds(10)) == std::future_status::ready);
  dying.reset();
  late.send(store::encode(store::Join{"job", 0, 1, 2}));
  REQUIRE(late.flush());
  goes_on.set_value();

  while (frames.empty() && read(late, &frames)) {
  }
  REQUIRE(frames.size() == 1);
  Status status;
  REQUIRE(store::decode_failed(frames[0], &status));
  CHECK(status.code() == Code::kPeerFailed);
  CHECK(status.info().ranks == std::vector<int>{0});
}

TEST_CASE(
    "after a failure a late rank gets the error from its host's store, and starts anew in an external one") {
  for (const bool one_rendezvous : {true, false}) {
    const Store store(kSecret, "unix:@" + unique_name(), silent, one_rendezvous);
    Meeting told = joined(store.member(0, 3));
    joined(store.member(1, 3)).reset();
    std::vector<Bytes> all;
    CHECK(told->all_gather({}, &all, in_ms(kPlenty)).code() == Code::kPeerFailed);
    const Status status = join_error(store.member(2, 3));
    INFO(status.text());
    if (!one_rendezvous) {
      CHECK(status.ok());
      continue;
    }
    CHECK(status.code() == Code::kPeerFailed);
    CHECK(status.info().ranks == std::vector<int>{1});
  }
}

TEST_CASE("a process killed during bootstrap fails the others at once, by name") {
  const std::string name = unique_name();
  const auto options = [&](int rank) {
    StoreOptions made;
    made.rank = rank;
    made.size = 3;
    made.store = "unix:@" + name;
    made.key = AuthKey::open();
    return made;
  };
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Meeting exchange;
    std::vector<Bytes> all;
    if (StoreExchange::make(options(1), system_clock, silent, in_ms(kPlenty), &exchange).ok()) {
      (void)!::write(ready[1], "x", 1);
      (void)exchange->all_gather({}, &all, in_ms(kPlenty));
    }
    ::_exit(0);
  }
  const Meeting exchange = joined(options(0));
  char byte;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  REQUIRE(::kill(child, SIGKILL) == 0);
  std::vector<Bytes> all;
  const Status status = exchange->all_gather({}, &all, in_ms(kPlenty));
  ::waitpid(child, nullptr, 0);
  ::close(ready[0]);
  ::close(ready[1]);
  CHECK(status.code() == Code::kPeerFailed);
  CHECK(status.info().ranks == std::vector<int>{1});
}

TEST_CASE("ranks that a launcher has started anew never meet the store of the start before") {
  const std::string address = cat("tcp://127.0.0.1:", test::free_port());
  const auto member = [&](int rank, const std::string& job) {
    StoreOptions options;
    options.rank = rank;
    options.size = 2;
    options.store = address;
    options.key = kSecret;
    options.job = job;
    return options;
  };
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  test::ChildProcess old([&] {
    Meeting exchange;
    const StoreOptions options = member(0, "run/0");
    if (!StoreExchange::make(options, system_clock, silent, in_ms(kPlenty), &exchange).ok()) return 1;
    (void)!::write(ready[1], "x", 1);
    for (;;) ::pause();
  });
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  const Status refused = join_error(member(1, "run/1"), 300);
  CHECK(refused.code() == Code::kTimeout);
  CHECK(contains(refused.text(), "an earlier start"));

  Status late;
  std::thread rank([&] { late = meet(member(1, "run/1")); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  REQUIRE(::kill(old.pid(), SIGKILL) == 0);
  CHECK(meet(member(0, "run/1")).ok());
  rank.join();
  INFO(late.text());
  CHECK(late.ok());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a rank that gives up sends the others the reason") {
  const Store store;
  Meeting waiting = joined(store.member(0, 2));
  Meeting failing = joined(store.member(1, 2));
  failing->fail(Status::error(Code::kNoMemory, "rank 1 has no memory").with_ranks({1}));
  failing.reset();
  std::vector<Bytes> all;
  const Status status = waiting->all_gather({}, &all, in_ms(kPlenty));
  CHECK(status.code() == Code::kNoMemory);
  CHECK(status.info().ranks == std::vector<int>{1});
  CHECK(!waiting->check().ok());
}

TEST_CASE("a rank that leaves early fails the ranks that still need it") {
  const Store store;
  Meeting waiting = joined(store.member(0, 2));
  Meeting leaving = joined(store.member(1, 2));
  leaving->finish();
  leaving.reset();
  std::vector<Bytes> all;
  const Status status = waiting->all_gather({}, &all, in_ms(kPlenty));
  CHECK(status.code() == Code::kPeerFailed);
  CHECK(status.info().ranks == std::vector<int>{1});
}

TEST_CASE("a waiting loop detects a failure through watch_fd") {
  const Store store;
  Meeting watching = joined(store.member(0, 2));
  CHECK(watching->check().ok());
  joined(store.member(1, 2)).reset();
  REQUIRE(wait_for(watching->watch_fd(), POLLIN, system_clock, in_ms(kPlenty)));
  Status status;
  while (status.ok() && wait_for(watching->watch_fd(), POLLIN, system_clock, in_ms(kPlenty)))
    status = watching->check();
  CHECK(status.code() == Code::kPeerFailed);
}

TEST_CASE("processes of other users do not bootstrap at a unix address") {
  test::need_other_users();
  const Store store(AuthKey::open(), "unix:@" + unique_name());
  StoreOptions options = store.member(0, 2);
  options.key = AuthKey::open();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const bool other = ::setuid(test::kNobody) == 0;
    Meeting exchange;
    const Status status = StoreExchange::make(options, system_clock, silent, in_ms(kPlenty), &exchange);
    const bool refuses = status.code() == Code::kAuth && contains(status.text(), "user 0");
    // The store does not answer a client that would accept that either.
    UnauthenticatedClient careless(store.server->address());
    const std::string hello = text_of(encode_hello(Hello()));
    (void)!::send(careless.fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
    std::string heard;
    const bool refused = careless.ends(&heard) && heard.empty();
    ::_exit(other && refuses && refused ? 0 : 1);
  }
  int ended = 0;
  REQUIRE(::waitpid(child, &ended, 0) == child);
  CHECK(ended == 0);
}

TEST_CASE("a store's address that another process holds is an error that names it") {
  const Store store;
  StoreOptions options = store.member(0, 2);
  options.external = false;
  Meeting exchange;
  const Status status = StoreExchange::make(options, system_clock, silent, in_ms(200), &exchange);
  CHECK(status.code() == Code::kSystem);
  CHECK(contains(status.text(), options.store));
  CHECK(contains(status.text(), "second rank 0"));
}

}  // namespace unit_store
