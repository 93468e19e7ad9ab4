// lib/framed/transport: a link may complete any frames inside its own send call.
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <span>
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
  bool send(int peer, ByteView head, ByteView, InFlightFrame& frame) override {
    if (Note note; parse(head, &note) && note.kind == FrameKind::kNote && note.what == NoteKind::kCredit)
      credited += note.first;
    if (loses_peer) {
      events_->lost(peer, Status::error(Code::kPeerFailed, "the cable is out"));
      return false;
    }
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
  bool loses_peer = false;
  uint64_t credited = 0;  // bytes of the window that were returned to the peer

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

TEST_CASE("a cancelled send ends once the link no longer reads its buffer") {
  Rig rig;
  Message message;
  rig.send(&message, 40);
  CHECK(!rig.link->settled());
  rig.link->may_complete = 40;
  rig.transport->cancel(&message);
  CHECK(message.done);
  CHECK(message.status.code() == Code::kCancelled);
  CHECK(rig.link->settled());
}

TEST_CASE("a send of which the link took no frame fails with the reason for which the peer is lost") {
  Rig rig;
  Message message;
  rig.link->loses_peer = true;
  rig.send(&message, 1);
  CHECK(!message.done);
  const Deadline deadline = Deadline::after(rig.clock, 10'000, 0);
  while (!message.done && !deadline.expired(rig.clock)) rig.transport->progress();
  CHECK(message.status.code() == Code::kPeerFailed);
  rig.link->loses_peer = false;
}

// ---- Frames of another process ----

namespace {

constexpr uint64_t kToken = 77;

// A rig whose peer sends what the test says.
struct Hearing : Rig {
  Hearing() { peer().token_in = kToken; }
  Peer& peer() { return transport->peer(kPeer); }
  void hear_message(uint64_t number, uint64_t size, uint64_t data, uint64_t token = kToken,
                    bool offered = false) {
    Header header;
    header.from = kPeer;
    header.token = token;
    header.slot = number;
    header.size = size;
    header.name = number;
    header.offered = offered ? 1 : 0;
    transport->on_frame(std::as_bytes(std::span(&header, 1)), ByteView(large).first(data));
  }
  void hear_fragment(uint64_t number, uint64_t offset, uint64_t data) {
    Fragment fragment;
    fragment.from = kPeer;
    fragment.token = kToken;
    fragment.name = number;
    fragment.offset = offset;
    transport->on_frame(std::as_bytes(std::span(&fragment, 1)), ByteView(large).first(data));
  }
  void receive(uint64_t number, Message* message) {
    transport->receive(kPeer, {number, 0, 0}, target.data(), target.size(), message);
  }

  Bytes large = Bytes(100'000, std::byte{7});
  Bytes target = Bytes(100'000);
};

}  // namespace

TEST_CASE("a frame without the token of its sender is discarded") {
  Hearing rig;
  Message message;
  rig.receive(1, &message);
  for (const uint64_t wrong : {uint64_t{0}, kToken + 1, kToken ^ (uint64_t{1} << 63)}) {
    rig.hear_message(1, 8, 8, wrong);
    CHECK(!message.done);
    CHECK(rig.peer().received == 0);
  }
  rig.hear_message(1, 8, 8);
  CHECK(message.done);
  CHECK(message.received_bytes == 8);
}

TEST_CASE("a fragment that does not continue its message loses the peer") {
  for (const bool posted : {true, false}) {
    for (const uint64_t offset : {uint64_t{999}, uint64_t{1001}, uint64_t{0}, UINT64_MAX}) {
      Hearing rig;
      Message message;
      if (posted) rig.receive(1, &message);
      rig.hear_message(1, 3000, 1000);
      rig.hear_fragment(1, 1000, 0);
      CHECK(!rig.peer().broken);
      rig.hear_fragment(1, offset, 1000);
      CHECK(rig.peer().broken);
      CHECK(!message.done);
      if (posted) rig.transport->cancel(&message);
    }
    Hearing rig;
    Message message;
    if (posted) rig.receive(1, &message);
    rig.hear_message(1, 3000, 1000);
    rig.hear_fragment(1, 1000, 2001);  // longer than the rest
    CHECK(rig.peer().broken);
    CHECK(!message.done);
    if (posted) rig.transport->cancel(&message);
  }
}

TEST_CASE("a peer that sends more than the window before it is received is lost") {
  Hearing rig;
  const uint64_t fit = kWindowBytes / cost(100'000);
  for (uint64_t number = 1; number <= fit; number++) rig.hear_message(number, 100'000, 1000);
  CHECK(!rig.peer().broken);
  CHECK(rig.peer().arrived_bytes == fit * cost(100'000));
  rig.hear_message(fit + 1, 100'000, 1000);
  CHECK(rig.peer().broken);
  CHECK(rig.peer().arrived_bytes <= kWindowBytes);
}

TEST_CASE("the window is free again for what has been received, and no credit is given for offers") {
  Hearing rig;
  for (uint64_t number = 1; number <= 50; number++) {
    Message message;
    rig.hear_message(number, 100'000, 100'000);
    rig.receive(number, &message);
    CHECK(message.done);
    CHECK(message.status.ok());
    CHECK(rig.target == rig.large);
  }
  CHECK(!rig.peer().broken);
  CHECK(rig.peer().arrived_bytes == 0);
  CHECK(rig.link->credited + rig.peer().owed == 50 * cost(100'000));
  CHECK(rig.link->credited > 0);
  for (uint64_t number = 51; number <= 100; number++) {
    Message message;
    rig.hear_message(number, 100'000, 0, kToken, true);
    rig.receive(number, &message);
    rig.transport->cancel(&message);
  }
  CHECK(rig.link->credited + rig.peer().owed == 50 * cost(100'000));
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
