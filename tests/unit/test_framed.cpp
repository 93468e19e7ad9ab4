// lib/framed/transport: a link may complete any frames inside its own send call.
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include "base/log.h"
#include "framed/custom_link.h"
#include "framed/transport.h"
#include "support/catch.h"

namespace unit_framed {

using namespace weft;
using namespace weft::framed;

namespace {

constexpr int kPeer = 1;
constexpr uint64_t kPiece = 1024;

// A link that keeps every frame until the test completes it.
class KeepingLink final : public Link {
 public:
  Status open(LinkEvents& events, Bytes*) override {
    events_ = &events;
    return {};
  }
  Status connect(int, ByteView, LinkLimits* limits) override {
    *limits = {kPiece, 64 * kPiece};
    return {};
  }
  bool send(int peer, ByteView, ByteView, InFlightFrame& frame) override {
    frame.busy = true;
    frame.peer = peer;
    kept_.push_back(&frame);
    if (inside_send) inside_send();
    return true;
  }
  bool progress() override {
    if (may_complete == 0 || kept_.empty()) return false;
    may_complete--;
    complete_oldest();
    return true;
  }
  void close(int) override {}
  void stop() override { kept_.clear(); }
  bool settled() override { return kept_.empty(); }
  std::string path(int) const override { return {}; }
  std::string about() const override { return {}; }
  const char* name() const override { return "keeping"; }

  void complete_oldest() {
    InFlightFrame* const frame = kept_.front();
    kept_.pop_front();
    events_->sent(*frame, {});
  }
  // Completes all frames, the newest first: the frame that is being sent, then earlier ones.
  void complete_all() {
    std::reverse(kept_.begin(), kept_.end());
    while (!kept_.empty()) complete_oldest();
  }
  // Completes the frames of one message.
  void complete_of(const Message& message) {
    std::vector<InFlightFrame*> found;
    for (InFlightFrame* frame : kept_) {
      if (static_cast<Part*>(frame)->posted == message.impl) found.push_back(frame);
    }
    for (InFlightFrame* frame : found) {
      kept_.erase(std::find(kept_.begin(), kept_.end(), frame));
      events_->sent(*frame, {});
    }
  }

  std::function<void()> inside_send;
  int may_complete = 0;  // frames that may complete inside progress

 private:
  LinkEvents* events_ = nullptr;
  std::deque<InFlightFrame*> kept_;
};

struct Rig {
  Rig() {
    auto made = std::make_unique<KeepingLink>();
    link = made.get();
    transport = std::make_unique<FramedTransport>(0, 2, std::move(made), clock, log);
    Bytes address;
    REQUIRE(transport->open(&address).ok());
    REQUIRE(transport->connect(kPeer, {}).ok());
  }
  ~Rig() {
    link->inside_send = nullptr;
    link->complete_all();
  }
  void send(Message* message, uint64_t pieces) {
    transport->send(kPeer, {++slot, 0, 0}, {}, bytes.data(), pieces * kPiece, message);
  }
  // Expects all messages to complete within a bounded number of rounds.
  void finish(const std::vector<Message*>& messages) {
    for (int round = 0; round < 1000; round++) {
      link->may_complete = 1;
      transport->progress();
    }
    for (const Message* message : messages) {
      CHECK(message->done);
      CHECK(message->status.ok());
    }
    CHECK(transport->peer(kPeer).posted.empty());
    CHECK(transport->peer(kPeer).posted.size() == 0);  // NOLINT: counted apart from the links of the list
  }

  SystemClock clock;
  Log log;
  KeepingLink* link = nullptr;
  std::unique_ptr<FramedTransport> transport;
  Bytes bytes = Bytes(64 * kPiece);
  uint64_t slot = 0;
};

}  // namespace

TEST_CASE("a link that completes another message's frames inside send completes that message alone") {
  Rig rig;
  Message longer, shorter, third;
  rig.send(&longer, 40);
  rig.send(&shorter, 3);  // handed over in full: only its completions are missing
  rig.send(&third, 40);
  rig.link->inside_send = [&] {
    if (!shorter.done) rig.link->complete_of(shorter);
  };
  rig.finish({&longer, &shorter, &third});
}

TEST_CASE("a link that completes the frame it is given inside send completes its message once") {
  Rig rig;
  Message before, one, two, three;
  rig.send(&before, 1);
  rig.link->inside_send = [&] { rig.link->complete_all(); };
  rig.send(&one, 1);
  CHECK(before.done);
  CHECK(one.done);
  rig.send(&two, 3);
  CHECK(two.done);
  rig.send(&three, 40);
  rig.finish({&before, &one, &two, &three});
}

namespace {

// A program's transport, and an event receiver that is out of memory.
struct Throws final : LinkEvents {
  void on_frame(ByteView, ByteView) override { throw std::bad_alloc(); }
  void sent(InFlightFrame&, const Status&) override {}
  void lost(int, Status) override {}
};

struct OwnTransport {
  weft_transport_events events{};
  bool returned = false;  // its callback returned normally
};

}  // namespace

TEST_CASE("an exception in an event does not unwind a program's transport, and reaches the caller") {
  OwnTransport own;
  weft_transport table = WEFT_TRANSPORT_INIT;
  table.name = "own";
  table.user_data = &own;
  table.open = [](void* data, int32_t, int32_t, const weft_transport_events* events, void** link, void*,
                  uint64_t* size) -> weft_status {
    static_cast<OwnTransport*>(data)->events = *events;
    *link = data;
    *size = 1;
    return WEFT_OK;
  };
  table.progress = [](void* link) -> int32_t {
    auto& self = *static_cast<OwnTransport*>(link);
    self.events.heard(self.events.owner, "frame", 5);
    self.returned = true;
    return 1;
  };
  table.close = [](void*) {};
  Log log;
  Throws events;
  CustomLink link(table, 0, 2, log);
  Bytes address;
  REQUIRE(link.open(events, &address).ok());
  CHECK_THROWS_AS(link.progress(), std::bad_alloc);
  CHECK(own.returned);
}

}  // namespace unit_framed
