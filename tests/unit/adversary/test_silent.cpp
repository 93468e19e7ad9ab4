// Clients that connect, speak as much of the protocol as they can without the secret, and then wait: silent,
// or one byte now and then. They hold neither the members nor the descriptors of their processes.
#include <fcntl.h>
#include <sys/resource.h>

#include <cstdio>
#include <fstream>

#include "adversary_rig.h"
#include "rendezvous/store_server.h"
#include "support/fast_clock.h"
#include "support/sanitized.h"

namespace unit_silent {

using namespace weft;
using namespace weft::test;

namespace {

StoreOptions member_of(const std::string& store, int rank, int size, const std::string& job = "job") {
  StoreOptions options = store_options(store, rank, size);
  options.key = job_secret();
  options.job = job;
  return options;
}

// One rank of a job: meets the others in the store, connects with them, and exchanges messages.
// met: called after it has joined the store. published: called with all ranks' addresses.
Status run_rank(const StoreOptions& options, bool tcp, const std::function<void()>& met = nullptr,
                const std::function<void(const std::vector<Bytes>&)>& published = nullptr) {
  std::unique_ptr<StoreExchange> exchange;
  WEFT_TRY(StoreExchange::make(options, system_clock, silent, in_ms(kPlenty), &exchange));
  if (met) met();
  MeshOptions mesh_options;
  mesh_options.tcp = tcp;
  mesh_options.deadline = in_ms(kPlenty);
  Translator elsewhere(*exchange, nullptr);
  Exchange& chosen = tcp ? static_cast<Exchange&>(elsewhere) : *exchange;
  Interposed interposed(chosen, [&](int round, std::vector<Bytes>* all) {
    if (round == 0 && published) published(*all);
  });
  std::unique_ptr<SocketMesh> mesh;
  WEFT_TRY(SocketMesh::make(interposed, mesh_options, system_clock, silent, &mesh));
  // The backends need at least these descriptors: memory for each rank of the host.
  std::vector<Fd> memory;
  for (int i = 0; i < 2 * options.size; i++) {
    memory.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!memory.back().valid()) return Status::system("a descriptor of the rank's own", errno);
  }
  std::vector<Bytes> all;
  WEFT_TRY(exchange->all_gather(Bytes(100), &all, in_ms(kPlenty)));
  exchange->finish();
  return {};
}

}  // namespace

TEST_CASE("silent clients leave descriptors to a rank whose process has few") {
  REQUIRE(init_crypto().ok());
  const uint16_t port = free_port();
  const std::string store = cat("tcp://127.0.0.1:", port);
  const Pipe told, go;
  ChildProcess rank0([&] {
    const rlimit few{open_descriptors() + 100, open_descriptors() + 100};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return 2;
    const auto wait_for_clients = [&] {
      char byte = 0;
      (void)told.put('m');
      (void)go.get(&byte);
    };
    const Status status = run_rank(member_of(store, 0, 2), true, wait_for_clients);
    if (!status.ok()) std::fprintf(stderr, "rank 0: %s\n", status.text().c_str());
    return status.ok() ? 0 : 1;
  });
  char byte = 0;
  REQUIRE(told.get(&byte));
  std::vector<RawConnection> clients;
  for (int i = 0; i < 200; i++) {
    clients.emplace_back(tcp_address(port), AuthKey::open());
    if (i % 2 == 0 && clients.back().open()) clients.back().greet();
  }
  REQUIRE(go.put('g'));
  const Status status = run_rank(member_of(store, 1, 2), true);
  INFO(status.text());
  CHECK(status.ok());
  CHECK(rank0.wait() == 0);
}

TEST_CASE("silent clients of its own port leave descriptors to a rank that connects with others") {
  REQUIRE(init_crypto().ok());
  const std::string store = unique_store();
  const Pipe told;
  ChildProcess rank0([&] {
    const rlimit few{open_descriptors() + 70, open_descriptors() + 70};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return 2;
    // Another thread of the process needs descriptors meanwhile.
    std::atomic<bool> over{false}, refused{false};
    std::thread opens([&] {
      while (!over) {
        std::array<Fd, 8> files;
        for (Fd& each : files) each = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        for (const Fd& each : files) refused = refused || !each.valid();
        ::poll(nullptr, 0, 1);
      }
    });
    const Status status = run_rank(member_of(store, 0, 2), true);
    over = true;
    opens.join();
    if (!status.ok()) std::fprintf(stderr, "rank 0: %s\n", status.text().c_str());
    return !status.ok() ? 1 : refused ? 3 : 0;
  });
  std::vector<RawConnection> clients;
  const auto connect_clients = [&](const std::vector<Bytes>& all) {
    mesh::Advertisement theirs;
    if (!mesh::decode(all[0], &theirs)) return;
    for (int i = 0; i < 200; i++) clients.emplace_back(tcp_address(theirs.tcp_port), AuthKey::open());
    for (size_t i = 0; i < clients.size(); i += 2) clients[i].say_next();
    ::poll(nullptr, 0, 50);
  };
  const Status status = run_rank(member_of(store, 1, 2), true, nullptr, connect_clients);
  INFO(status.text());
  CHECK(status.ok());
  CHECK(clients.size() == 200);
  CHECK(rank0.wait() == 0);
}

TEST_CASE("the time of a client is limited as a whole, however it divides its bytes") {
  // The store's time is ten times as fast: it allows half a second instead of five.
  REQUIRE(init_crypto().ok());
  FastClock fast(10);
  std::unique_ptr<StoreServer> server;
  bool in_use = false;
  REQUIRE(StoreServer::start({tcp_address(0), job_secret(), {}}, fast, silent, &server, &in_use).ok());
  const Address place = server->address();
  constexpr int64_t kBoundMs = 2 * StoreServer::kUnauthenticatedMs / 10 + 500;
  std::atomic<bool> over{false};
  std::atomic<int64_t> slowest{0};
  std::atomic<int> formed{0};
  std::thread jobs([&] {
    while (!over) {
      const uint64_t begin = system_clock.now_ns();
      std::array<Status, 2> results;
      std::array<std::thread, 2> ranks;
      for (size_t rank = 0; rank < 2; rank++) {
        ranks[rank] = std::thread([&, rank] {
          StoreOptions options =
              member_of(place.text(), static_cast<int>(rank), 2, cat("job ", formed.load()));
          options.external = true;
          std::unique_ptr<StoreExchange> exchange;
          std::vector<Bytes> all;
          results[rank] = StoreExchange::make(options, system_clock, silent, in_ms(kPlenty), &exchange);
          if (results[rank].ok()) results[rank] = exchange->all_gather(Bytes(10), &all, in_ms(kPlenty));
          if (results[rank].ok()) exchange->finish();
        });
      }
      for (std::thread& rank : ranks) rank.join();
      if (!results[0].ok() || !results[1].ok()) break;
      slowest = std::max<int64_t>(slowest, since_ms(begin));
      formed++;
    }
  });
  // Each way: the bytes that a client sends at each time, in milliseconds after it connected.
  enum Way {
    kNothing,
    kGreets,
    kDrips,
    kGreetsAndDrips,
    kLastByteOfHello,
    kLastByteOfProof,
    kWrongProofThenDrips,
    kWays
  };
  const auto failures = run_cases(kWays * 3, [&](size_t i) -> std::string {
    const auto way = static_cast<Way>(i % kWays);
    const uint64_t begin = system_clock.now_ns();
    RawConnection client(place, job_secret());
    if (!client.open()) return cat("way ", i % kWays, ": no connection");
    Bytes bytes(client.stream().out());
    if (way == kGreets || way == kGreetsAndDrips || way == kLastByteOfProof || way == kWrongProofThenDrips) {
      if (!client.greet()) return cat("way ", i % kWays, ": no hello");
      bytes = client.stream().out();
    }
    if (way == kLastByteOfHello || way == kLastByteOfProof) {
      client.say(ByteView(bytes).first(bytes.size() - 1));
      ::poll(nullptr, 0, static_cast<int>(StoreServer::kUnauthenticatedMs / 10 - 50));
      client.say(ByteView(bytes).last(1));
    }
    if (way == kWrongProofThenDrips) client.say(Bytes(32));
    const bool drips = way == kDrips || way == kGreetsAndDrips || way == kWrongProofThenDrips;
    // The last byte is never sent, as it would complete the step.
    for (size_t at = 0; since_ms(begin) < 2 * kBoundMs; at++) {
      if (drips && at + 1 < bytes.size()) client.say(ByteView(bytes).subspan(at, 1));
      if (client.ended_by_other(drips ? 15 : 100)) {
        return since_ms(begin) <= kBoundMs ? ""
                                           : cat("way ", i % kWays, ": kept for ", since_ms(begin), " ms");
      }
    }
    return way == kLastByteOfProof && client.stream().greeted() ? "" : cat("way ", i % kWays, ": kept");
  });
  over = true;
  jobs.join();
  CHECK(failures == std::vector<std::string>());
  CHECK(formed > 3);
  CHECK(slowest < 3000);
}

namespace {

// Returns the bytes of this process that are in memory.
size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("a member that asks again and again, and never reads, costs the store bounded memory") {
  if (kSanitized) WEFT_SKIP("a sanitizer keeps freed memory");
  REQUIRE(init_crypto().ok());
  std::unique_ptr<StoreServer> server;
  bool in_use = false;
  REQUIRE(
      StoreServer::start({tcp_address(0), job_secret(), {}}, system_clock, silent, &server, &in_use).ok());
  RawConnection member(server->address(), job_secret());
  REQUIRE(member.prove());
  REQUIRE(member.send(store::encode(store::Join{"job", 0, 0, 1000})));
  Bytes joined;
  REQUIRE(member.hear_frame(&joined));
  const size_t before = resident_bytes();
  for (int i = 0; i < 40'000; i++) {
    // The store reads all of it.
    const Bytes asks = member.sealed(store::encode_plain(store::Type::kWhoIsMissing));
    for (size_t sent = 0; sent < asks.size();) {
      const ssize_t put = ::send(member.fd(), asks.data() + sent, asks.size() - sent, MSG_NOSIGNAL);
      if (put > 0) sent += static_cast<size_t>(put);
      if (put < 0 && errno != EAGAIN) FAIL("the store has closed the connection");
      if (put < 0) REQUIRE(wait_for(member.fd(), POLLOUT, system_clock, in_ms(kPlenty)));
    }
  }
  ::poll(nullptr, 0, 200);
  CHECK(resident_bytes() < before + (6 << 20));
}

}  // namespace unit_silent
