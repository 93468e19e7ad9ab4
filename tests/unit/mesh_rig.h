// Helpers for tests of lib/rendezvous/mesh: meshes between threads of one process, recorded events, ranks
// that seem to be on different hosts, and a relay between two of them that fails as the test asks.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"
#include "rendezvous/mesh.h"
#include "rendezvous/mesh_wire.h"
#include "rendezvous/socket.h"
#include "rendezvous/store_exchange.h"
#include "support/catch.h"

namespace weft::test {

inline SystemClock system_clock;
inline Log silent;
inline constexpr int64_t kPlenty = 30'000;

inline Deadline in_ms(int64_t ms) {
  return Deadline::after(system_clock, ms, 0);
}
inline std::string text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline ByteView view(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string unique_store() {
  const Key key = random_key();
  std::string name = "unix:@weft-test-";
  for (size_t i = 0; i < 8; i++) name += cat(static_cast<int>(key[i]), ".");
  return name;
}

// Records a mesh's events, and lets a test wait for them.
class Witness final : public ControlListener {
 public:
  void on_peer_lost(int rank, const Status& why) override {
    add([&] { lost_[rank] = why; });
  }
  void on_peer_left(int rank) override {
    add([&] { left_[rank]++; });
  }
  void on_message(int rank, ByteView message) override {
    add([&] { messages_[rank].push_back(text_of(message)); });
    if (on_any_message) on_any_message();
  }

  bool wait(const std::function<bool()>& condition, int64_t ms = kPlenty) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(ms), condition);
  }
  Status lost(int rank) {
    CHECK(wait([&] { return lost_.count(rank) > 0; }));
    const std::lock_guard lock(mutex_);
    return lost_[rank];
  }
  bool left(int rank) {
    return wait([&] { return left_.count(rank) > 0; });
  }
  std::vector<std::string> messages(int rank, size_t count) {
    CHECK(wait([&] { return messages_[rank].size() >= count; }));
    const std::lock_guard lock(mutex_);
    return messages_[rank];
  }
  size_t lost_count() {
    const std::lock_guard lock(mutex_);
    return lost_.size();
  }
  // Returns true if no rank is lost for this long.
  bool all_is_well(int64_t ms) {
    return !wait([&] { return !lost_.empty(); }, ms);
  }
  std::function<void()> on_any_message;

 private:
  void add(const std::function<void()>& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Status> lost_;
  std::map<int, int> left_;
  std::map<int, std::vector<std::string>> messages_;
};

// Carries the connection from a higher rank to rank 0. It forwards bytes, and then fails as the test asks.
class Relay {
 public:
  enum class Mode : uint8_t {
    kForward,
    kSilent,     // accepts nothing and sends nothing
    kDrip,       // passes a byte now and then, in both directions; if one side closes, the other side
                 // receives nothing more
    kReset,      // breaks both connections
    kHalfClosed  // closes the direction to rank 0, and forwards the other one
  };

  Relay() {
    Address nowhere;
    bool in_use = false;
    nowhere.kind = Address::Kind::kTcp;
    nowhere.host = "127.0.0.1";
    REQUIRE(listen_at(nowhere, false, &listener_, &address_, &in_use).ok());
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    stopping_ = true;
    thread_.join();
  }
  uint16_t port() const { return address_.port; }
  void lead_to(uint16_t port) { target_port_ = port; }
  void set(Mode mode) { mode_ = mode; }

 private:
  static constexpr int kLookMs = 20;

  void run() {
    while (!stopping_) {
      pollfd ready{listener_.get(), POLLIN, 0};
      bool exhausted = false;
      if (!low_.valid()) {
        if (::poll(&ready, 1, kLookMs) > 0) (void)accept_from(listener_.get(), &high_, &exhausted).ok();
        if (high_.valid()) connect();
        continue;
      }
      const Mode mode = mode_;
      if (mode == Mode::kReset) return reset();
      if (mode == Mode::kHalfClosed && !half_closed_) {
        ::shutdown(low_.get(), SHUT_WR);
        half_closed_ = true;
      }
      if (mode != Mode::kForward && mode != Mode::kHalfClosed) ::poll(nullptr, 0, kLookMs * 2);
      if (mode == Mode::kSilent) continue;
      std::array<pollfd, 2> both{pollfd{high_.get(), POLLIN, 0}, pollfd{low_.get(), POLLIN, 0}};
      ::poll(both.data(), both.size(), kLookMs);
      const size_t most = mode == Mode::kDrip ? 1 : 4096;
      const bool whole = (both[0].revents == 0 || half_closed_ || forward(high_.get(), low_.get(), most)) &&
                         (both[1].revents == 0 || forward(low_.get(), high_.get(), most));
      if (whole) continue;
      if (mode != Mode::kDrip) return reset();
      mode_ = Mode::kSilent;
    }
  }
  void connect() {
    Address target = address_;
    target.port = target_port_;
    int error = 0;
    Fd fd;
    if (!connect_to(target, &fd, &error).ok()) return;
    pollfd ready{fd.get(), POLLOUT, 0};
    if (::poll(&ready, 1, 10'000) > 0 && finish_connect(fd.get()) == 0) low_ = std::move(fd);
  }
  static bool forward(int from, int to, size_t most) {
    std::array<std::byte, 4096> bytes;
    const ssize_t got = ::recv(from, bytes.data(), most, 0);
    return got > 0 && ::send(to, bytes.data(), static_cast<size_t>(got), MSG_NOSIGNAL) == got;
  }
  // With SO_LINGER 0, close() sends a reset.
  void reset() {
    for (Fd* fd : {&high_, &low_}) {
      const linger at_once{1, 0};
      ::setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      fd->reset();
    }
  }

  Fd listener_, high_, low_;  // connections of the higher rank, and of rank 0
  Address address_;
  bool half_closed_ = false;
  std::atomic<uint16_t> target_port_{0};
  std::atomic<Mode> mode_{Mode::kForward};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// How a rank is connected.
struct Wiring {
  int64_t heartbeat_ms = -1;
  bool tcp = false;        // as if every rank were on a host of its own
  Relay* relay = nullptr;  // the path to rank 0
};

// Two network-facing ranks on one machine would find each other's unix socket. This exchange gives each rank
// socket names that do not exist, as on another host.
struct Translator final : Exchange {
  Translator(Exchange& exchange, Relay* way_to_0) : inner(exchange), relay(way_to_0) {}
  int rank() const override { return inner.rank(); }
  int size() const override { return inner.size(); }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override {
    WEFT_TRY(inner.all_gather(mine, all, deadline));
    for (size_t r = 0; r < all->size(); r++) {
      mesh::Advertisement advertisement;
      if (!mesh::decode((*all)[r], &advertisement)) continue;
      advertisement.unix_name = "weft-test-on-another-host";
      advertisement.hosts = {"127.0.0.1"};
      if (r == 0 && relay != nullptr) {
        relay->lead_to(advertisement.tcp_port);
        advertisement.tcp_port = relay->port();
      }
      (*all)[r] = mesh::encode(advertisement);
    }
    return {};
  }
  Exchange& inner;
  Relay* const relay;
};

inline StoreOptions store_options(const std::string& store, int rank, int size) {
  StoreOptions options;
  options.rank = rank;
  options.size = size;
  options.store = store;
  options.key = AuthKey::open();
  return options;
}

inline Status form(const std::string& store, int rank, int size, const Wiring& wiring,
                   std::unique_ptr<SocketMesh>* mesh) {
  std::unique_ptr<StoreExchange> exchange;
  WEFT_TRY(
      StoreExchange::make(store_options(store, rank, size), system_clock, silent, in_ms(kPlenty), &exchange));
  MeshOptions options;
  options.tcp = wiring.tcp;
  options.heartbeat_timeout_ms = wiring.heartbeat_ms;
  options.deadline = in_ms(kPlenty);
  Translator translator(*exchange, wiring.relay);
  Exchange& chosen = wiring.tcp ? static_cast<Exchange&>(translator) : *exchange;
  WEFT_TRY(SocketMesh::make(chosen, options, system_clock, silent, mesh));
  exchange->finish();
  return {};
}

using Meshes = std::vector<std::unique_ptr<SocketMesh>>;

// Creates one mesh for each wiring.
inline Meshes form_all(const std::vector<Wiring>& wirings) {
  const std::string store = unique_store();
  const int size = static_cast<int>(wirings.size());
  Meshes meshes(wirings.size());
  std::vector<Status> results(wirings.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < meshes.size(); rank++) {
    threads.emplace_back([&, rank] {
      results[rank] = form(store, static_cast<int>(rank), size, wirings[rank], &meshes[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : results) {
    INFO(status.text());
    REQUIRE(status.ok());
  }
  return meshes;
}

inline Meshes form_all(int size) {
  return form_all(std::vector<Wiring>(static_cast<size_t>(size)));
}

}  // namespace weft::test
