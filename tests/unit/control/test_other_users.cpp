// lib/rendezvous among other users of the host. Another user may bind the store's name, connect to it, or
// share its number in a user namespace. Such a user neither joins a job, nor blocks its bootstrap, nor fills
// its log.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "base/text.h"
#include "rendezvous/refusals.h"
#include "rendezvous/socket.h"
#include "rendezvous/store_exchange.h"
#include "support/catch.h"
#include "support/users.h"

namespace unit_other_users {

using namespace weft;

namespace {

SystemClock system_clock;
Log silent;
constexpr int64_t kPlentyMs = 20'000;

Deadline in_ms(int64_t ms) {
  return Deadline::after(system_clock, ms, 0);
}
const AuthKey kSecret = AuthKey::from_secret(std::as_bytes(std::span("a secret of the job")));

std::string unique_name() {
  const Key key = random_key();
  std::string name = "weft-test-";
  for (size_t i = 0; i < 8; i++) name += cat(static_cast<int>(key[i]), ".");
  return name;
}

Address unix_at(const std::string& name) {
  Address address;
  address.name = name;
  return address;
}

enum class Squat { kListens, kBindsOnly, kFull };

// Another user's process that holds a name, and more names with the same beginning as its replacement.
class Squatter {
 public:
  Squatter(const std::string& name, Squat how) : child_([&] { return hold(name, how); }, test::kNobody) {
    ::close(ends_[1]);
    char ready = 0;
    REQUIRE(::read(ends_[0], &ready, 1) == 1);
  }
  ~Squatter() { ::close(ends_[0]); }

 private:
  static std::array<int, 2> make_pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    return ends;
  }
  int hold(const std::string& name, Squat how) {
    for (const std::string& held : {name, name + "~0000000000000000", name + "~ffffffffffffffff"}) {
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::memcpy(address.sun_path + 1, held.data(), held.size());
      const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + held.size());
      const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
      if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), size) != 0) return 1;
      if (how != Squat::kBindsOnly && ::listen(listener, how == Squat::kFull ? 0 : 1024) != 0) return 2;
      if (how != Squat::kFull) continue;
      const int waits = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
      if (::connect(waits, reinterpret_cast<const sockaddr*>(&address), size) != 0) return 3;
    }
    if (::write(ends_[1], "r", 1) != 1) return 4;
    for (;;) ::pause();
  }

  std::array<int, 2> ends_ = make_pipe();
  test::ChildProcess child_;
};

// Each rank is a thread that joins, gathers once, and leaves. Returns the texts of their failures.
std::vector<std::string> meet(const std::string& name, int size, const AuthKey& key, uint64_t sequence = 0) {
  std::vector<Status> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; rank++) {
    threads.emplace_back([&, rank] {
      StoreOptions options;
      options.rank = rank;
      options.size = size;
      options.store = "unix:@" + name;
      options.key = key;
      options.sequence = sequence;
      std::unique_ptr<StoreExchange> exchange;
      Status status = StoreExchange::make(options, system_clock, silent, in_ms(kPlentyMs), &exchange);
      std::vector<Bytes> all;
      if (status.ok()) status = exchange->all_gather(Bytes(3), &all, in_ms(kPlentyMs));
      if (status.ok()) exchange->finish();
      results[static_cast<size_t>(rank)] = status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> failures;
  for (const Status& status : results) {
    if (!status.ok()) failures.push_back(status.text());
  }
  return failures;
}

const std::vector<std::string> kNone;

// Collects the lines of a log, and counts them by level.
struct Lines {
  Log log{[this](LogLevel level, const char* line) {
            const std::lock_guard lock(mutex);
            lines.emplace_back(line);
            warnings += level == LogLevel::kWarn ? 1 : 0;
          },
          LogLevel::kInfo};
  std::mutex mutex;  // the store's thread writes
  std::vector<std::string> lines;
  int warnings = 0;
};

// Returns how many refusals the lines report: one each, or the number that a line gives.
int refusals_in(const std::vector<std::string>& lines) {
  int count = 0;
  for (const std::string& line : lines) {
    const size_t more = line.find(": refused ");
    if (more == std::string::npos) continue;
    const int number = std::atoi(line.c_str() + more + 10);
    count += number > 0 ? number : 1;
  }
  return count;
}

}  // namespace

TEST_CASE("another user who holds the store's name does not block a job's bootstrap") {
  test::need_other_users();
  REQUIRE(init_crypto().ok());
  for (const Squat how : {Squat::kListens, Squat::kBindsOnly, Squat::kFull}) {
    INFO(static_cast<int>(how));
    const std::string name = unique_name();
    const Squatter squatter(name, how);
    for (uint64_t sequence = 0; sequence < 2; sequence++) {
      CHECK(meet(name, 3, sequence == 0 ? AuthKey::open() : kSecret, sequence) == kNone);
    }
  }
}

TEST_CASE("a second rank 0 of the same user is an error, and uses no other name") {
  REQUIRE(init_crypto().ok());
  const std::string name = unique_name();
  std::unique_ptr<StoreServer> store;
  bool in_use = false;
  REQUIRE(StoreServer::start({unix_at(name), kSecret, {}}, system_clock, silent, &store, &in_use).ok());
  StoreOptions options;
  options.size = 2;
  options.store = "unix:@" + name;
  options.key = kSecret;
  std::unique_ptr<StoreExchange> exchange;
  const Status status = StoreExchange::make(options, system_clock, silent, in_ms(500), &exchange);
  CHECK(status.code() == Code::kSystem);
  CHECK(status.text().find("a second rank 0?") != std::string::npos);
}

TEST_CASE("an external store whose name another user holds is refused at once") {
  test::need_other_users();
  REQUIRE(init_crypto().ok());
  const std::string name = unique_name();
  const Squatter squatter(name, Squat::kListens);
  StoreOptions options;
  options.rank = 1;
  options.size = 2;
  options.store = "unix:@" + name;
  options.key = kSecret;
  options.external = true;
  std::unique_ptr<StoreExchange> exchange;
  const Status status = StoreExchange::make(options, system_clock, silent, in_ms(kPlentyMs), &exchange);
  CHECK(status.code() == Code::kAuth);
  CHECK(status.text().find("user 65534") != std::string::npos);
}

TEST_CASE("a peer whose user the kernel does not report is refused") {
  CHECK(check_peer_user(-1).code() == Code::kAuth);
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  CHECK(check_peer_user(ends[0]).code() == Code::kAuth);
  ::close(ends[0]);
  ::close(ends[1]);
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  CHECK(check_peer_user(ends[0]).ok());
  ::close(ends[0]);
  ::close(ends[1]);
}

namespace {

// Returns 0 if a unix address is served with the secret, and without one if `open`, and a rank gets the same
// answer.
int serves(bool open) {
  std::unique_ptr<StoreServer> store;
  bool in_use = false;
  const Address address = unix_at(unique_name());
  if (!StoreServer::start({address, kSecret, {}}, system_clock, silent, &store, &in_use).ok()) return 1;
  store.reset();
  const Status status =
      StoreServer::start({address, AuthKey::open(), {}}, system_clock, silent, &store, &in_use);
  store.reset();
  if (open) return status.ok() ? 0 : 2;
  if (status.code() != Code::kAuth || status.text().find("WEFT_SECRET_FILE") == std::string::npos) return 3;
  StoreOptions options;
  options.rank = 1;
  options.size = 2;
  options.store = address.text();
  options.key = AuthKey::open();
  std::unique_ptr<StoreExchange> exchange;
  return StoreExchange::make(options, system_clock, silent, in_ms(100), &exchange).code() == Code::kAuth ? 0
                                                                                                         : 4;
}

}  // namespace

TEST_CASE("a user namespace's number for users of other namespaces needs a secret") {
  REQUIRE(init_crypto().ok());
  constexpr int kNotAllowed = 77;
  const int found = test::ChildProcess([] {
                      if (::unshare(CLONE_NEWUSER) != 0) return kNotAllowed;
                      return ::geteuid() == test::kNobody ? serves(false) : kNotAllowed;
                    }).wait();
  if (found == kNotAllowed) WEFT_SKIP("user namespaces are not allowed here");
  CHECK(found == 0);
}

TEST_CASE("in the initial user namespace equal user numbers are the same user") {
  test::need_other_users();
  REQUIRE(init_crypto().ok());
  CHECK(test::ChildProcess([] { return serves(true); }, test::kNobody).wait() == 0);
}

namespace {

// A clock that stands still until the test sets it.
class SetClock final : public Clock {
 public:
  uint64_t now_ns() override { return now; }
  void relax(uint32_t /*round*/) override {}
  void sleep(const std::atomic<uint32_t>& /*word*/, uint32_t /*expected*/, uint64_t /*until_ns*/) override {}
  void wake_all(const std::atomic<uint32_t>& /*word*/) override {}
  uint64_t now = 1;
};

}  // namespace

TEST_CASE("at most ten refusals are logged in ten seconds, and the others are counted") {
  Lines lines;
  SetClock clock;
  {
    Refusals refusals("store", clock, lines.log);
    for (int i = 0; i < 25; i++) refusals.report(LogLevel::kWarn, "because");
    refusals.report(LogLevel::kDebug, "of a level that is not written");
    CHECK(lines.lines.size() == 10);
    CHECK(lines.lines[0].find("store: refused a connection: because") != std::string::npos);
    clock.now += 10'000'000'000;
    for (int i = 0; i < 12; i++) refusals.report(LogLevel::kInfo, "of another kind");
    REQUIRE(lines.lines.size() == 21);  // the count, and ten more
    CHECK(lines.lines[10].find("store: refused 15 more connections") != std::string::npos);
    CHECK(lines.warnings == 11);
  }
  REQUIRE(lines.lines.size() == 22);
  CHECK(lines.lines[21].find("store: refused 2 more connections") != std::string::npos);
  CHECK(refusals_in(lines.lines) == 25 + 12);
  CHECK(lines.warnings == 11);
}

TEST_CASE("another user who connects continuously does not fill the log") {
  test::need_other_users();
  REQUIRE(init_crypto().ok());
  constexpr int kCount = 500;
  Lines lines;
  {
    std::unique_ptr<StoreServer> store;
    bool in_use = false;
    const Address address = unix_at(unique_name());
    REQUIRE(StoreServer::start({address, kSecret, {}}, system_clock, lines.log, &store, &in_use).ok());
    const std::function<int()> attack = [&] {
      for (int i = 0; i < kCount; i++) {
        Fd fd;
        int error = 0;
        char byte = 0;
        if (!connect_to(address, &fd, &error).ok()) return 1;
        if (!wait_for(fd.get(), POLLIN, system_clock, in_ms(kPlentyMs))) return 2;
        if (::recv(fd.get(), &byte, 1, 0) != 0) return 3;  // it was accepted
      }
      return 0;
    };
    test::ChildProcess other(attack, test::kNobody);
    CHECK(other.wait() == 0);
  }
  CHECK(refusals_in(lines.lines) == kCount);
  // A log period may end meanwhile.
  CHECK(lines.warnings <= 4 * (Refusals::kLines + 1));
}

}  // namespace unit_other_users
