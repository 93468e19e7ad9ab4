// backends/loopback: messages between threads, and the control channel among them.
#include "loopback/control.h"
#include "loopback/loopback.h"
#include "loopback/transport.h"
#include "support/catch.h"
#include "support/thread_group.h"

namespace unit_loopback {

using namespace weft;
using namespace weft::loopback;

namespace {

struct Pair {
  std::shared_ptr<Fabric> fabric = std::make_shared<Fabric>(2);
  LoopbackTransport a{fabric, 0};
  LoopbackTransport b{fabric, 1};
};

std::vector<std::byte> pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; i++) bytes[i] = static_cast<std::byte>(i * 7 + 3);
  return bytes;
}

class Recorder final : public ControlListener {
 public:
  void on_peer_lost(int rank, const Status& why) override {
    events.push_back("lost " + std::to_string(rank) + " " + why.text());
  }
  void on_peer_left(int rank) override { events.push_back("left " + std::to_string(rank)); }
  void on_message(int rank, ByteView message) override {
    events.push_back("message " + std::to_string(rank) + " of " + std::to_string(message.size()));
  }
  std::vector<std::string> events;
};

}  // namespace

TEST_CASE("messages match by tag, whatever the order, small and large") {
  Pair pair;
  for (const size_t size : {size_t{0}, size_t{10}, size_t{kEagerBytes + 1}, size_t{3} << 20}) {
    const std::vector<std::byte> first = pattern(size), second = pattern(size + 1);
    std::vector<std::byte> got_first(size), got_second(size + 1);
    Message sends[2], receives[2];
    Descriptor descriptor;
    descriptor.count = size;
    pair.a.send(1, {7, 0, 1}, descriptor, first.data(), size, &sends[0]);
    pair.a.send(1, {7, 0, 2}, descriptor, second.data(), size + 1, &sends[1]);
    pair.b.receive(0, {7, 0, 2}, got_second.data(), size + 1, &receives[1]);
    pair.b.receive(0, {7, 0, 1}, got_first.data(), size, &receives[0]);
    for (int i = 0; i < 20; i++) {
      pair.b.progress();
      pair.a.progress();
    }
    REQUIRE((sends[0].done && sends[1].done && receives[0].done && receives[1].done));
    CHECK(got_first == first);
    CHECK(got_second == second);
    CHECK(receives[0].peer_descriptor == descriptor);
    CHECK(receives[0].received_bytes == size);
  }
  CHECK(pair.a.counters().bytes_sent == pair.b.counters().bytes_received);
}

TEST_CASE("a message that is too long is refused and nothing is written beyond the buffer") {
  Pair pair;
  for (const size_t size : {size_t{10}, size_t{kEagerBytes + 1}}) {
    const std::vector<std::byte> data = pattern(size);
    std::vector<std::byte> room(16);
    Message send, receive;
    pair.a.send(1, {}, {}, data.data(), size, &send);
    pair.b.receive(0, {}, room.data(), 8, &receive);
    pair.b.progress();
    pair.a.progress();
    REQUIRE((send.done && receive.done));
    CHECK(receive.status.code() == Code::kMismatch);
    CHECK(room == std::vector<std::byte>(16));
  }
}

TEST_CASE("a cancelled message is not read any more") {
  Pair pair;
  std::vector<std::byte> data = pattern(4 << 20), room(4 << 20);
  Message send, receive;
  pair.a.send(1, {}, {}, data.data(), data.size(), &send);
  pair.b.receive(0, {}, room.data(), room.size(), &receive);
  pair.b.progress();  // sends a piece of it
  CHECK(!receive.done);
  pair.a.cancel(&send);
  data = {};
  pair.b.progress();
  REQUIRE(receive.done);
  CHECK(receive.status.code() == Code::kPeerFailed);
}

TEST_CASE("a message without a receive can be probed") {
  Pair pair;
  Message send;
  Descriptor sent, seen;
  sent.count = 42;
  CHECK(!pair.b.peek(0, 3, 9, &seen));
  pair.a.send(1, {9, 3, 1}, sent, nullptr, 0, &send);
  CHECK(!pair.b.peek(0, 3, 8, &seen));
  REQUIRE(pair.b.peek(0, 3, 9, &seen));
  CHECK(seen == sent);
}

TEST_CASE("control events of a rank arrive once, in order, and not after stop") {
  SystemClock clock;
  const auto hub = std::make_shared<ControlHub>(3, clock);
  Recorder recorder;
  auto zero = ControlHub::connect(hub, 0);
  auto one = ControlHub::connect(hub, 1);
  auto two = ControlHub::connect(hub, 2);
  const Bytes message(5);
  one->send(0, message);
  zero->start(&recorder);
  one->send(0, message);
  one->leave();
  one.reset();  // it has said goodbye already
  hub->kill(2, Evidence::kProcess, "rank 2 was killed");
  two.reset();
  CHECK(recorder.events ==
        std::vector<std::string>{"message 1 of 5", "message 1 of 5", "left 1", "lost 2 rank 2 was killed"});
  zero->stop();
  hub->kill(1, Evidence::kProcess, "again");
  CHECK(recorder.events.size() == 4);
}

TEST_CASE("ranks of one process share a fabric, and no other rank uses it") {
  SystemClock clock;
  Log log;
  test::ThreadGroup group(1, clock);
  const auto exchange = group.exchange(0);
  const DeviceOps none{};
  std::unique_ptr<Transport> transport;
  REQUIRE(backend().make_transport({*exchange, clock, log, none}, &transport).ok());
  CHECK(std::string(transport->name()) == "loopback");
  CHECK(transport->local_size() == 1);
}

namespace {

// Returns what another process would send.
class ForeignExchange final : public Exchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline) override {
    Bytes other(mine.begin(), mine.end());
    if (!other.empty()) other[0] ^= std::byte{1};  // another process id
    *all = {Bytes(mine.begin(), mine.end()), other};
    return {};
  }
};

}  // namespace

TEST_CASE("loopback refuses ranks of other processes") {
  SystemClock clock;
  Log log;
  ForeignExchange exchange;
  const DeviceOps none{};
  std::unique_ptr<Transport> transport;
  const Status status = backend().make_transport({exchange, clock, log, none}, &transport);
  CHECK(status.code() == Code::kUnavailable);
  CHECK(status.text().find("loopback is for ranks of one process") != std::string::npos);
}

}  // namespace unit_loopback
