// All-gathers among some ranks over a control channel: complete when every member has come, and nobody else
// counts.
#include "core/control_exchange.h"
#include "loopback/control.h"
#include "support/catch.h"

using namespace weft;

namespace {

constexpr uint8_t kKind = 2;

// What comes goes into a postbox.
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

TEST_CASE("a message of a rank that is no member takes no member's place") {
  SystemClock clock;
  Engine engine(clock, Engine::Mode::kCaller);
  const auto hub = std::make_shared<loopback::ControlHub>(3, clock);
  Postbox postbox;
  Receiver receiver(postbox);
  const std::unique_ptr<Control> mine = loopback::ControlHub::connect(hub, 0);
  const std::unique_ptr<Control> members = loopback::ControlHub::connect(hub, 1);
  const std::unique_ptr<Control> strangers = loopback::ControlHub::connect(hub, 2);
  mine->start(&receiver);
  ControlExchange exchange(
      *mine, postbox, engine,
      {.kind = kKind, .id = 7, .self = 0, .members = {0, 1}, .broken = [] { return Status(); }, .owner = {}});
  for (const uint32_t round : {0u, 1u}) {
    ByteWriter message;
    message.put(kKind).put(uint32_t{7}).put(round).put_bytes({});
    strangers->send(0, message.bytes());
    if (round == 1) members->send(0, message.bytes());
    std::vector<Bytes> all;
    const Status status = exchange.all_gather({}, &all, Deadline::after(clock, 50, 0));
    CHECK(status.code() == (round == 0 ? Code::kTimeout : Code::kOk));
    if (round == 0) CHECK(status.info().ranks == std::vector<int>{1});
    CHECK(all.size() == 2);
  }
  mine->stop();
}

TEST_CASE("messages that come too late for their exchange do not keep later ones from forming") {
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
