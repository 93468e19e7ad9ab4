// All-gathers among some ranks over a control channel: complete when every member has sent its value;
// messages of other ranks do not count.
#include "control/control_exchange.h"

#include <malloc.h>

#include "control/generations.h"
#include "loopback/control.h"
#include "support/catch.h"

namespace unit_control_exchange {

using namespace weft;

namespace {

constexpr uint8_t kKind = 2;

// Puts incoming messages into a postbox.
class Receiver final : public ControlListener {
 public:
  explicit Receiver(Postbox& postbox) : postbox_(postbox) {}
  void on_peer_lost(int /*rank*/, const Status& /*why*/) override {}
  void on_peer_left(int /*rank*/) override {}
  void on_message(int rank, ByteView message) override {
    ByteReader reader(message);
    if (reader.get<uint8_t>() == kKind) postbox_.on_message(rank, reader);
  }

 private:
  Postbox& postbox_;
};

}  // namespace

TEST_CASE("a message of a rank that is no member does not count as a member's") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto hub = std::make_shared<loopback::ControlHub>(3, clock);
  Postbox postbox;
  Receiver receiver(postbox);
  const std::unique_ptr<Control> mine = loopback::ControlHub::connect(hub, 0);
  const std::unique_ptr<Control> members = loopback::ControlHub::connect(hub, 1);
  const std::unique_ptr<Control> strangers = loopback::ControlHub::connect(hub, 2);
  mine->start(&receiver);
  for (const bool comes : {false, true}) {
    ControlExchange exchange(*mine, postbox, engine,
                             {.kind = kKind,
                              .id = 7,
                              .self = 0,
                              .members = {0, 1},
                              .names = {},
                              .broken = [] { return Status(); },
                              .owner = {}});
    ByteWriter message;
    message.put(kKind).put(uint32_t{7}).put(uint32_t{0}).put_bytes({});
    strangers->send(0, message.bytes());
    if (comes) members->send(0, message.bytes());
    std::vector<Bytes> all;
    const Status status = exchange.all_gather({}, &all, Deadline::after(clock, 50, 0));
    CHECK(status.code() == (comes ? Code::kOk : Code::kTimeout));
    if (!comes) CHECK(status.info().ranks == std::vector<int>{1});
    CHECK(all.size() == 2);
  }
  mine->stop();
}

TEST_CASE("messages that arrive too late for their exchange do not block later exchanges") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto hub = std::make_shared<loopback::ControlHub>(2, clock);
  Postbox postbox;
  Receiver receiver(postbox);
  const std::unique_ptr<Control> mine = loopback::ControlHub::connect(hub, 0);
  const std::unique_ptr<Control> other = loopback::ControlHub::connect(hub, 1);
  mine->start(&receiver);
  const auto say = [&](uint32_t id, uint32_t round) {
    ByteWriter message;
    message.put(kKind).put(id).put(round).put_bytes({});
    other->send(0, message.bytes());
    mine->poll();
  };
  // More than a postbox holds.
  constexpr uint32_t kLast = 5000;
  for (uint32_t id = 0; id <= kLast; id++) {
    ControlExchange exchange(*mine, postbox, engine,
                             {.kind = kKind,
                              .id = id,
                              .self = 0,
                              .members = {0, 1},
                              .names = {},
                              .broken = [] { return Status(); },
                              .owner = {}});
    std::vector<Bytes> all;
    if (id == kLast) say(id, 0);
    const Status status = exchange.all_gather({}, &all, Deadline::after(clock, id == kLast ? 1000 : -2, 0));
    CHECK(status.ok() == (id == kLast));
    if (id != kLast) say(id, 0);
  }
  mine->stop();
}

namespace {

// A member of an exchange among ranks 1, 2 and 4 of a channel, which the program calls 0, 1 and 3.
struct Member {
  Member(const std::shared_ptr<loopback::ControlHub>& hub, Engine& engine, int channel_rank)
      : control(loopback::ControlHub::connect(hub, channel_rank)),
        exchange(*control, postbox, engine,
                 {.kind = kKind,
                  .id = 1,
                  .self = channel_rank,
                  .members = {1, 2, 4},
                  .names = {0, 1, 3},
                  .broken = [this] { return broken; },
                  .owner = {}}) {
    control->start(&receiver);
  }
  ~Member() { control->stop(); }

  Postbox postbox;
  Receiver receiver{postbox};
  Status broken;
  const std::unique_ptr<Control> control;
  ControlExchange exchange;
};

}  // namespace

TEST_CASE("a member that cannot continue notifies all, which name it by the program's rank number") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto hub = std::make_shared<loopback::ControlHub>(5, clock);
  Member first(hub, engine, 1), second(hub, engine, 2), third(hub, engine, 4);
  third.exchange.fail(Status::error(Code::kSystem, "no descriptors left"));
  for (Member* member : {&first, &second}) {
    std::vector<Bytes> all;
    const Status status = member->exchange.all_gather({}, &all, Deadline::after(clock, 10'000, 0));
    CHECK(status.code() == Code::kSystem);
    CHECK(status.text() == "rank 3: no descriptors left");
    CHECK(status.info().evidence == Evidence::kReport);
    CHECK(status.info().ranks == std::vector<int>{3});
    CHECK(member->exchange.check().code() == Code::kSystem);
  }
}

TEST_CASE(
    "an exchange reports the original failure instead of its consequences, and names the rank at fault") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto hub = std::make_shared<loopback::ControlHub>(5, clock);
  Member first(hub, engine, 1), second(hub, engine, 2), third(hub, engine, 4);
  first.broken = Status::error(Code::kPeerFailed, "rank 3 is gone", Evidence::kProcess).with_ranks({3});
  first.exchange.fail(Status::error(Code::kUnavailable, "no memory came"));
  CHECK(first.exchange.check().code() == Code::kPeerFailed);
  const Status told = second.exchange.check();
  CHECK(told.code() == Code::kPeerFailed);
  CHECK(told.text() == "rank 0 reports: rank 3 is gone");
  CHECK(told.info().ranks == std::vector<int>{3});
}

TEST_CASE("a round that is complete succeeds though a member has failed since") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto hub = std::make_shared<loopback::ControlHub>(5, clock);
  Member first(hub, engine, 1), second(hub, engine, 2), third(hub, engine, 4);
  std::vector<Bytes> all;
  for (Member* member : {&first, &second}) {
    CHECK(member->exchange.all_gather({}, &all, Deadline::at(0)).code() == Code::kTimeout);
  }
  // Both have failed because of it, but have sent their bytes before.
  CHECK(third.exchange.all_gather({}, &all, Deadline::at(0)).ok());
  const Status next = third.exchange.all_gather({}, &all, Deadline::after(clock, 10'000, 0));
  CHECK(next.code() == Code::kTimeout);
  CHECK(next.info().evidence == Evidence::kReport);
}

TEST_CASE("the memory that an exchange keeps for one rank is bounded, and freed with it") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto hub = std::make_shared<loopback::ControlHub>(5, clock);
  Postbox postbox;
  const Bytes large(Exchange::kMaxBytes / 2);
  const auto deliver = [&](int rank, uint32_t id, uint32_t round) {
    ByteWriter message;
    message.put(id).put(round).put_bytes(large);
    ByteReader reader(message.bytes());
    postbox.on_message(rank, reader);
  };
  for (uint32_t round = 0; round < 100; round++) deliver(2, 1, round);
  CHECK(postbox.held_bytes() <= Postbox::kMostBytes);
  CHECK(postbox.held_bytes() > Postbox::kMostBytes - 2 * large.size());
  const size_t of_one = postbox.held_bytes();
  for (uint32_t round = 0; round < 3; round++) deliver(4, 1, round);
  CHECK(postbox.held_bytes() > of_one);  // one rank's messages do not take another rank's share
  {
    const std::unique_ptr<Control> control = loopback::ControlHub::connect(hub, 1);
    ControlExchange exchange(*control, postbox, engine,
                             {.kind = kKind,
                              .id = 1,
                              .self = 1,
                              .members = {1, 2, 4},
                              .names = {},
                              .broken = [] { return Status(); },
                              .owner = {}});
    std::vector<Bytes> all;
    CHECK(exchange.all_gather({}, &all, Deadline::at(0)).ok());
    CHECK(all[1] == large);
  }
  CHECK(postbox.held_bytes() == 0);
}

TEST_CASE("messages for future generations take a bounded part of the memory") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto hub = std::make_shared<loopback::ControlHub>(3, clock);
  const auto generations = std::make_shared<Generations>(loopback::ControlHub::connect(hub, 0), 0, 3, engine);
  ByteWriter message;
  message.put(Generations::kConsensusMessage).put(uint32_t{9}).put_raw(Bytes(Control::kMaxMessage / 2));
  const auto used = [] {
    const struct mallinfo2 info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = used();
  for (int i = 0; i < 64; i++) generations->on_message(1 + i % 2, message.bytes());
  CHECK(used() - before < 8u << 20);
}

}  // namespace unit_control_exchange
