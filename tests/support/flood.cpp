#include "support/flood.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <new>
#include <string_view>

#include "rendezvous/secure_stream.h"
#include "rendezvous/store_protocol.h"
#include "support/catch.h"

namespace weft::test {
namespace {

constexpr size_t kHeld = 400;
constexpr std::string_view kHttp = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\n\r\n";
constexpr std::string_view kTls("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);

enum class Kind : uint8_t {
  kGarbage,
  kHttp,
  kTls,
  kOversized,
  kReplay,
  kSlow,
  kHalfOpen,
  kHalfHello,
  kGreeting,
  kReset,
  kCount
};

struct Held {
  int fd = -1;
  Kind kind = Kind::kReset;
  size_t said = 0;
};

// Runs in the forked process, where the parent's other threads do not exist: it neither allocates nor locks.
class Attacker {
 public:
  Attacker(const std::vector<uint16_t>& ports, const Bytes& recorded, const Bytes& hello, bool greetings,
           std::atomic<uint64_t>* count)
      : ports_(ports), recorded_(recorded), hello_(hello), greetings_(greetings), count_(count) {
    for (std::byte& each : garbage_) each = static_cast<std::byte>(random());
  }

  [[noreturn]] void run() {
    for (uint64_t i = 0;; i++) {
      Held& held = held_[i % kHeld];
      reset(held);
      // Drawn at random rather than in turn with the ports, so that every kind reaches every port.
      held.kind = static_cast<Kind>(random() % static_cast<unsigned>(Kind::kCount));
      if (greetings_) held.kind = Kind::kGreeting;
      if (connect_to(ports_[i % ports_.size()], &held)) {
        act(held);
        count_->fetch_add(1);
      }
      drip(held_[random() % kHeld]);
    }
  }

 private:
  unsigned random() {  // xorshift
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_;
  }

  static bool connect_to(uint16_t port, Held* held) {
    held->fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    held->said = 0;
    ::connect(held->fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    pollfd waiting{held->fd, POLLOUT, 0};
    if (::poll(&waiting, 1, 100) == 1 && (waiting.revents & (POLLERR | POLLHUP)) == 0) return true;
    reset(*held);
    return false;
  }

  void act(Held& held) {
    switch (held.kind) {
      case Kind::kGarbage:
        return say(held, ByteView(garbage_).first(1 + random() % garbage_.size()));
      case Kind::kHttp:
        return say(held, std::as_bytes(std::span(kHttp)));
      case Kind::kTls:
        return say(held, std::as_bytes(std::span(kTls)));
      case Kind::kOversized:
        say(held, hello_);
        for (int i = 0; i < 16; i++) say(held, garbage_);
        return;
      case Kind::kReplay:
        return say(held, recorded_);
      case Kind::kHalfHello:
        say(held, ByteView(hello_).first(hello_.size() / 2));
        ::shutdown(held.fd, SHUT_WR);
        return;
      case Kind::kGreeting:
        return say(held, hello_);
      case Kind::kReset:
        return reset(held);
      case Kind::kSlow:
      case Kind::kHalfOpen:
      case Kind::kCount:
        return;
    }
  }

  void drip(Held& held) {
    if (held.fd < 0 || held.kind != Kind::kSlow || held.said == hello_.size()) return;
    say(held, ByteView(hello_).subspan(held.said++, 1));
  }

  static void say(const Held& held, ByteView bytes) {
    [[maybe_unused]] const ssize_t sent =
        ::send(held.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  // Closes with a reset, so that the port does not stay in TIME_WAIT. Otherwise a second flood would find no
  // free ports.
  static void reset(Held& held) {
    if (held.fd < 0) return;
    const linger at_once{1, 0};
    ::setsockopt(held.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    ::close(held.fd);
    held.fd = -1;
  }

  const std::vector<uint16_t>& ports_;
  const Bytes& recorded_;
  const Bytes& hello_;
  const bool greetings_;
  std::atomic<uint64_t>* const count_;
  unsigned state_ = 2463534242u;
  std::array<Held, kHeld> held_;
  std::array<std::byte, 65536> garbage_;
};

}  // namespace

Bytes good_traffic(const AuthKey& secret) {
  SecureStream client(Role::kClient, secret), server(Role::kServer, secret);
  Bytes all;
  client.send(store::encode(store::Join{"job", 0, 1, 2}));
  client.send(store::encode(store::Give{0, Bytes(100)}));
  client.send(store::encode_plain(store::Type::kLeave));
  for (int i = 0; i < 3; i++) {
    std::vector<Bytes> frames;
    all.insert(all.end(), client.out().begin(), client.out().end());
    REQUIRE(server.receive(client.out(), &frames).ok());
    client.out().clear();
    REQUIRE(client.receive(server.out(), &frames).ok());
    server.out().clear();
  }
  return all;
}

Flood::Flood(const std::vector<uint16_t>& ports, const Bytes& recorded, bool greetings) {
  void* const page =
      ::mmap(nullptr, sizeof *count_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  count_ = new (page) std::atomic<uint64_t>(0);
  Hello hello;
  hello.secret = true;
  hello.nonce = random_key();
  const Bytes hello_bytes = encode_hello(hello);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::syscall(SYS_close_range, 3, ~0u, 0);  // closes inherited sockets, so that the parent's connections end
                                          // when the parent closes them
  Attacker(ports, recorded, hello_bytes, greetings, count_).run();
}

Flood::~Flood() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  ::munmap(count_, sizeof *count_);
}

}  // namespace weft::test
