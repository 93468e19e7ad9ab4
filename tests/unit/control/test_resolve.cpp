// lib/rendezvous/resolve: resolves names to addresses; a name server that does not answer costs no more than
// the deadline.
#include "rendezvous/resolve.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string_view>
#include <thread>

#include "base/fd.h"
#include "base/text.h"
#include "rendezvous/store_exchange.h"
#include "support/catch.h"

using namespace weft;

namespace {

SystemClock system_clock;
Log silent;

// Queries for names under this domain are answered once the test says so.
constexpr std::string_view kSlow = ".slow.weft.example";
// Names under this domain do not exist.
constexpr std::string_view kNone = ".none.weft.example";
// Names under this domain have two addresses.
constexpr std::string_view kTwo = ".two.weft.example";
std::atomic<int> slow_questions{0};
std::atomic<bool> slow_answers{false};

constexpr int kSkip = 77;
constexpr const char* kResolver = "/etc/resolv.conf";

// Enters a network namespace whose only name server accepts queries and answers none. Call it only in a
// separate process. Returns false if namespaces are not permitted.
bool enter_silence() {
  if (::unshare(CLONE_NEWNS | CLONE_NEWNET) != 0) return false;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  if (::mount("none", "/tmp", "tmpfs", 0, nullptr) != 0) return false;
  const Fd file(::open("/tmp/resolv.conf", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  constexpr std::string_view kText = "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n";
  if (::write(file.get(), kText.data(), kText.size()) != static_cast<ssize_t>(kText.size())) return false;
  if (::mount("/tmp/resolv.conf", kResolver, nullptr, MS_BIND, nullptr) != 0) return false;
  const int server = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP | IFF_RUNNING;
  if (::ioctl(server, SIOCSIFFLAGS, &loopback) != 0) return false;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(53);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

int join_a_name_in_silence() {
  if (!enter_silence()) return kSkip;
  StoreOptions options;
  options.rank = 1;
  options.size = 2;
  options.store = "tcp://weft-demo-0.weft.example:7087";
  options.key = AuthKey::from_secret(std::as_bytes(std::span("a secret of the job", 19)));
  std::unique_ptr<StoreExchange> exchange;
  const Status status =
      StoreExchange::make(options, system_clock, silent, Deadline::after(system_clock, 300, 0), &exchange);
  const bool named = status.text().find("weft-demo-0.weft.example: no name server") != std::string::npos;
  return status.code() == Code::kTimeout && named ? 0 : 1;
}

}  // namespace

extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  using Real = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Real>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (!numeric && host != nullptr && std::string_view(host).ends_with(kTwo)) {
    const int error = real("127.0.0.2", service, hints, found);
    return error != 0 ? error : real("127.0.0.1", service, hints, &(*found)->ai_next);
  }
  if (!numeric && host != nullptr && std::string_view(host).ends_with(kNone)) return EAI_NONAME;
  if (numeric || host == nullptr || !std::string_view(host).ends_with(kSlow)) {
    return real(host, service, hints, found);
  }
  slow_questions++;
  while (!slow_answers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return real("127.0.0.1", service, hints, found);
}

// The first case, because it forks: the threads that the other cases start may outlive them for a moment, and
// the thread sanitizer ends a child of a process with several threads that starts one.
TEST_CASE("a name server that does not answer costs a rank no more than its deadline") {
  const uint64_t begun = system_clock.now_ns();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::alarm(10);
    ::_exit(join_a_name_in_silence());
  }
  int how = 0;
  REQUIRE(::waitpid(child, &how, 0) == child);
  REQUIRE(WIFEXITED(how));  // else the alarm ended it
  if (WEXITSTATUS(how) == kSkip) {
    WARN("skipped: namespaces may not be made here");
    return;
  }
  CHECK(WEXITSTATUS(how) == 0);
  CHECK(system_clock.now_ns() - begun < 10'000'000'000u);
}

TEST_CASE("a name server that does not answer blocks one thread for each name, however many queries") {
  const auto ask = [](const Resolver& resolver, const std::string& host, int64_t ms) {
    std::vector<std::string> addresses;
    const Status status =
        resolver.resolve(host, system_clock, Deadline::after(system_clock, ms, 0), {}, &addresses);
    return status.ok() ? addresses.front() : std::string(code_name(status.code()));
  };
  const Resolver resolver;
  const Resolver copy = resolver;
  for (int i = 0; i < 3; i++) {
    CHECK(ask(resolver, "one.slow.weft.example", 20) == "deadline passed");
    CHECK(ask(copy, "one.slow.weft.example", 20) == "deadline passed");
  }
  CHECK(slow_questions == 1);
  CHECK(ask(resolver, "two.slow.weft.example", 20) == "deadline passed");
  CHECK(slow_questions == 2);
  slow_answers = true;
  CHECK(ask(copy, "one.slow.weft.example", 10'000) == "127.0.0.1");
  CHECK(slow_questions == 2);
  CHECK(ask(resolver, "one.slow.weft.example", 10'000) == "127.0.0.1");  // anew
  CHECK(slow_questions == 3);
  CHECK(ask(resolver, "two.slow.weft.example", 10'000) == "127.0.0.1");
  CHECK(slow_questions == 3);
}

TEST_CASE("an address resolves to itself, and an unknown name is an error") {
  std::vector<std::string> numeric;
  const auto resolve = [](const std::string& host, Clock& clock, Deadline deadline,
                          const ThreadStart& on_start, std::vector<std::string>* out) {
    return Resolver().resolve(host, clock, deadline, on_start, out);
  };
  for (const std::string address : {"10.87.0.1", "::1", "fe80::1%1"}) {
    // Also after the deadline, because no query is needed.
    CHECK(resolve(address, system_clock, Deadline::at(0), {}, &numeric).ok());
    CHECK(numeric == std::vector<std::string>{address});
  }
  const Deadline soon = Deadline::after(system_clock, 10'000, 0);
  CHECK(resolve("localhost", system_clock, soon, {}, &numeric).ok());
  CHECK(numeric.front() == "127.0.0.1");
  CHECK(resolve("localhost", system_clock, Deadline::at(0), {}, &numeric).code() == Code::kTimeout);
  const Status nobody = resolve("no such host", system_clock, soon, {}, &numeric);
  CHECK(nobody.code() == Code::kSystem);
  CHECK(nobody.text().find("no such host") != std::string::npos);
}

TEST_CASE("ranks meet at whichever address of a name has the store") {
  std::vector<std::string> addresses;
  const Deadline soon = Deadline::after(system_clock, 10'000, 0);
  REQUIRE(Resolver().resolve("store.two.weft.example", system_clock, soon, {}, &addresses).ok());
  CHECK(addresses == std::vector<std::string>{"127.0.0.2", "127.0.0.1"});

  StoreServerOptions listen;
  REQUIRE(parse_address("tcp://127.0.0.1:0", &listen.listen).ok());
  listen.key = AuthKey::from_secret(std::as_bytes(std::span("a secret of the job", 19)));
  std::unique_ptr<StoreServer> server;
  bool in_use = false;
  REQUIRE(StoreServer::start(listen, system_clock, silent, &server, &in_use).ok());
  StoreOptions options;
  options.size = 2;
  options.external = true;
  options.key = listen.key;
  options.store = cat("tcp://store.two.weft.example:", server->address().port);
  std::unique_ptr<StoreExchange> exchange;
  const Status status = StoreExchange::make(options, system_clock, silent, soon, &exchange);
  INFO(status.text());
  CHECK(status.ok());
}

TEST_CASE("the error about a host that does not exist says so, and not that the deadline came first") {
  StoreOptions options;
  options.rank = 1;
  options.size = 2;
  options.key = AuthKey::from_secret(std::as_bytes(std::span("a secret of the job", 19)));
  options.store = "tcp://store.none.weft.example:7087";
  std::unique_ptr<StoreExchange> exchange;
  const Deadline soon = Deadline::after(system_clock, 200, 0);
  const Status status = StoreExchange::make(options, system_clock, silent, soon, &exchange);
  INFO(status.text());
  CHECK(status.code() == Code::kTimeout);
  CHECK(status.text().find(::gai_strerror(EAI_NONAME)) != std::string::npos);
}
