// Attackers for the tests of this folder: clients that speak Weft's protocol by hand, as far as a test wants,
// and then end in the way that the test says.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "free_port.h"
#include "mesh_rig.h"
#include "rendezvous/secure_stream.h"
#include "support/sampling.h"
#include "support/seed.h"
#include "support/users.h"

namespace weft::test {

inline AuthKey job_secret() {
  return AuthKey::from_secret(view("a secret of the job"));
}

inline size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

inline int64_t since_ms(uint64_t begin_ns) {
  return static_cast<int64_t>((system_clock.now_ns() - begin_ns) / 1'000'000);
}

// The behaviour of an attacker after the bytes that it has sent.
enum class End : uint8_t { kSilence, kClose, kReset, kGarbage };
inline constexpr std::array kEnds = {End::kSilence, End::kClose, End::kReset, End::kGarbage};

inline const char* name(End end) {
  switch (end) {
    case End::kSilence:
      return "silence";
    case End::kClose:
      return "close";
    case End::kReset:
      return "reset";
    case End::kGarbage:
      return "garbage";
  }
  return nullptr;
}

// Returns the lengths to which a message is cut: around its header, and around its end. The last one is the
// whole message.
inline std::set<size_t> cuts(size_t header, size_t size) {
  std::set<size_t> all;
  for (const size_t cut : {size_t{0}, size_t{1}, header - 1, header, header + 1, size - 1, size}) {
    if (cut <= size) all.insert(cut);
  }
  return all;
}

// A connection on which an attacker decides each byte.
class RawConnection {
 public:
  RawConnection() = default;
  RawConnection(const Address& address, const AuthKey& key)
      : stream_(std::make_unique<SecureStream>(Role::kClient, key)) {
    int error = 0;
    if (!connect_to(address, &fd_, &error).ok() ||
        !wait_for(fd_.get(), POLLOUT, system_clock, in_ms(kPlenty)) || finish_connect(fd_.get()) != 0) {
      fd_.reset();
    }
  }

  bool open() const { return fd_.valid(); }
  int fd() const { return fd_.get(); }
  SecureStream& stream() { return *stream_; }

  // Sends bytes as they are. Returns false if the connection takes them no more.
  bool say(ByteView bytes) {
    return bytes.empty() ||
           ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  // Sends what the protocol has to send now.
  bool say_next() {
    const Bytes out = std::exchange(stream_->out(), {});
    return say(out);
  }
  // Receives until a frame has come, or the condition holds. Returns false at the end of the connection.
  bool hear(const std::function<bool()>& enough, int64_t ms = kPlenty) {
    while (!enough()) {
      if (!wait_for(fd_.get(), POLLIN, system_clock, in_ms(ms))) return false;
      Bytes bytes(1 << 16);
      const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
      if (got <= 0 || !stream_->receive(ByteView(bytes).first(static_cast<size_t>(got)), &frames_).ok())
        return false;
    }
    return true;
  }
  bool greet() {
    return say_next() && hear([&] { return stream_->greeted(); });
  }
  bool prove() {
    return greet() && say_next() && hear([&] { return stream_->established(); });
  }
  // Sends a whole frame.
  bool send(ByteView frame) {
    stream_->send(frame);
    return say_next();
  }
  bool hear_frame(Bytes* frame) {
    if (!hear([&] { return !frames_.empty(); })) return false;
    *frame = frames_.front();
    frames_.erase(frames_.begin());
    return true;
  }
  // Returns the bytes of a frame that the other side would accept next, without sending them.
  Bytes sealed(ByteView frame) {
    stream_->send(frame);
    return std::exchange(stream_->out(), {});
  }
  // Returns true if the other side ends the connection within this time.
  bool ended_by_other(int64_t ms) {
    const Deadline deadline = in_ms(ms);
    Bytes bytes(1 << 16);
    while (wait_for(fd_.get(), POLLIN, system_clock, deadline)) {
      const ssize_t got = ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
    }
    return false;
  }
  void end(End how) {
    if (how == End::kGarbage) say(Bytes(8192, std::byte{0xEE}));
    const linger at_once{1, 0};
    if (how == End::kReset) ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    if (how == End::kReset || how == End::kClose) fd_.reset();
  }

 private:
  Fd fd_;
  std::unique_ptr<SecureStream> stream_;
  std::vector<Bytes> frames_;
};

// Returns the named values of an enumeration below 64, also those that are added to it later.
template <auto value>
constexpr bool is_named() {
  const std::string_view text = __PRETTY_FUNCTION__;
  return text[text.find("value = ") + 8] != '(';  // another value is printed as a cast
}
template <class Enum, int... values>
std::vector<Enum> enumerators_of(std::integer_sequence<int, values...>) {
  std::vector<Enum> all;
  ((is_named<static_cast<Enum>(values)>() ? all.push_back(static_cast<Enum>(values)) : void()), ...);
  return all;
}
template <class Enum>
std::vector<Enum> enumerators() {
  return enumerators_of<Enum>(std::make_integer_sequence<int, 64>());
}

// Runs a function for each case, on a few threads at a time. Returns the texts of the failures; a function
// returns an empty text if all is well.
inline std::vector<std::string> run_cases(size_t count, const std::function<std::string(size_t)>& run) {
  constexpr size_t kAtOnce = 24;
  std::vector<std::string> failures;
  std::mutex mutex;
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(kAtOnce, count); i++) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < count; at = next++) {
        const std::string failure = run(at);
        const std::lock_guard lock(mutex);
        if (!failure.empty()) failures.push_back(failure);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

// An exchange that calls the test after each round, with what the ranks have published.
struct Interposed final : Exchange {
  using Hook = std::function<void(int round, std::vector<Bytes>* all)>;
  Interposed(Exchange& exchange, Hook after) : inner(exchange), hook(std::move(after)) {}
  int rank() const override { return inner.rank(); }
  int size() const override { return inner.size(); }
  int watch_fd() const override { return inner.watch_fd(); }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override {
    WEFT_TRY(inner.all_gather(mine, all, deadline));
    hook(round++, all);
    return {};
  }
  Exchange& inner;
  const Hook hook;
  int round = 0;
};

// A pipe between a test and its processes.
struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    read_end = Fd(ends[0]);
    write_end = Fd(ends[1]);
  }
  template <class T>
  bool put(const T& value) const {
    return ::write(write_end.get(), &value, sizeof value) == static_cast<ssize_t>(sizeof value);
  }
  template <class T>
  bool get(T* value, int64_t ms = kPlenty) const {
    return wait_for(read_end.get(), POLLIN, system_clock, in_ms(ms)) &&
           ::read(read_end.get(), value, sizeof *value) == static_cast<ssize_t>(sizeof *value);
  }
  Fd read_end, write_end;
};

inline Address tcp_address(uint16_t port) {
  Address address;
  address.kind = Address::Kind::kTcp;
  address.host = "127.0.0.1";
  address.port = port;
  return address;
}

}  // namespace weft::test
