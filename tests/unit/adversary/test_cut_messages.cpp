// Messages of members that are whole on the connection and cut inside: control messages, votes of the
// membership consensus, and frames of the framed transport, in each state of their receiver. A cut message
// has no effect, and the rank that sends nothing better is named within the deadline.
#include <cstring>

#include "adversary_rig.h"
#include "comm/comm.h"
#include "comm/context.h"
#include "control/consensus.h"
#include "control/generations.h"
#include "framed/transport.h"
#include "kernels/host_ops.h"
#include "transport/result.h"

namespace unit_cut_messages {

using namespace weft;
using namespace weft::test;

namespace {

using Kind = Consensus::Kind;

// A channel without other ranks: the test delivers messages, and sees those that this rank sends.
class Wire final : public Control {
 public:
  explicit Wire(std::function<void(int, ByteView)> on_send) : on_send_(std::move(on_send)) {}
  void start(ControlListener* /*listener*/) override {}
  void send(int rank, ByteView message) override { on_send_(rank, message); }
  void leave() override {}
  void stop() override {}

 private:
  const std::function<void(int, ByteView)> on_send_;
};

// Returns a valid message of each kind; empty for a kind that this table lacks.
Bytes vote_message(Kind kind, uint64_t number) {
  std::vector<int32_t> ranks;
  switch (kind) {
    case Kind::kPrepare:
    case Kind::kPromise:
    case Kind::kAccepted:
    case Kind::kRefuse:
      break;
    case Kind::kJoin:
      ranks = {1};
      break;
    case Kind::kAccept:
    case Kind::kDecided:
      ranks = {0, 2};
      break;
    default:
      return {};
  }
  ByteWriter writer;
  writer.put(Generations::kConsensusMessage).put(uint32_t{1}).put(kind).put(number).put(uint64_t{0});
  writer.put(static_cast<uint32_t>(ranks.size()));
  for (const int32_t rank : ranks) writer.put(rank);
  return writer.put(uint32_t{0}).take();
}

// Rank 0 of three shrinks. Rank 1 is lost. Rank 2 answers as far as `answers` says, and then with a message
// of `kind` that is cut.
Status shrink_beside(size_t answers, Kind kind, size_t cut) {
  Engine engine(system_clock, Engine::Mode::kCaller);
  std::shared_ptr<Generations> generations;
  size_t answered = 0;
  const auto answer = [&](int to, ByteView message) {
    if (to != 2) return;
    constexpr std::array kAnswers = {Kind::kJoin, Kind::kPromise, Kind::kAccepted};
    ByteReader reader(message.subspan(sizeof(uint8_t) + sizeof(uint32_t)));
    const auto asked = reader.get<Kind>();
    const auto number = reader.get<uint64_t>();
    constexpr std::array kAsked = {Kind::kJoin, Kind::kPrepare, Kind::kAccept};
    if (answered > answers || asked != kAsked[answered]) return;
    const size_t at = answered++;
    Bytes bytes = vote_message(at < answers ? kAnswers[at] : kind, number);
    if (at == answers) bytes.resize(std::min(cut, bytes.size()));
    generations->on_message(2, bytes);
  };
  generations = std::make_shared<Generations>(std::make_unique<Wire>(answer), 0, 3, engine);
  generations->on_peer_lost(1, Status::error(Code::kPeerFailed, "rank 1 is gone").with_ranks({1}));
  Generation next;
  return generations->agree(0, false, {}, in_ms(answers == 3 ? kPlenty : 10), &next);
}

}  // namespace

TEST_CASE(
    "a rank whose votes on a shrink are cut is named at the deadline, whatever it has answered before") {
  const std::vector<Kind> kinds = enumerators<Kind>();
  CHECK(kinds.size() == 7);
  for (size_t answers = 0; answers < 3; answers++) {
    for (const Kind kind : kinds) {
      const size_t size = vote_message(kind, 1).size();
      REQUIRE(size > 0);  // the table has a row for each kind
      for (const size_t cut : cuts(5, size)) {
        if (cut == size) continue;
        INFO("after " << answers << " answers, kind " << static_cast<int>(kind) << " cut to " << cut);
        const Status status = shrink_beside(answers, kind, cut);
        INFO(status.text());
        CHECK(status.code() == Code::kTimeout);
        CHECK(status.info().ranks == std::vector<int>{2});
        CHECK(status.text().find("rank 2") != std::string::npos);
      }
    }
  }
  CHECK(shrink_beside(3, Kind::kJoin, 0).ok());
}

namespace {

class NoLane final : public CollectiveLane {
 public:
  void start(const CollectiveArgs& /*args*/, uint64_t /*slot*/) override {}
  Poll poll() override { return Poll::kWaiting; }
  Status result() const override { return {}; }
  void abandon() override {}
  std::vector<int> missing() const override { return {}; }
  const char* algorithm() const override { return "none"; }
};

class NoCollectives final : public Collectives {
 public:
  Status open_lane(const LaneKey& /*key*/, std::unique_ptr<CollectiveLane>* lane) override {
    *lane = std::make_unique<NoLane>();
    return {};
  }
  bool outlives_sender() const override { return false; }
  std::shared_ptr<Arena> arena() override { return nullptr; }
  CollectiveCounters counters() const override { return {}; }
  int local_size() const override { return 3; }
  const char* name() const override { return "none"; }
};

// Delivers the messages of a communicator's channel.
class HeldWire final : public Control {
 public:
  HeldWire(ControlListener** listener, std::atomic<int>* sent) : listener_(listener), sent_(sent) {}
  void start(ControlListener* listener) override { *listener_ = listener; }
  void send(int /*rank*/, ByteView /*message*/) override { ++*sent_; }
  void leave() override {}
  void stop() override { *listener_ = nullptr; }

 private:
  ControlListener** const listener_;
  std::atomic<int>* const sent_;
};

// Returns a valid message of each type on a communicator's control channel.
std::vector<Bytes> control_messages() {
  const Status failed = Status::error(Code::kPeerFailed, "a text").with_ranks({2});
  ByteWriter failure, exchange, drain, note, confirmed, error;
  failure.put(uint8_t{1}).put(Code::kPeerFailed).put(Evidence::kProcess).put(uint64_t{3}).put(uint64_t{4});
  failure.put(uint32_t{1}).put(int32_t{2}).put_string("a text");
  exchange.put(uint8_t{2}).put(uint32_t{1}).put(uint32_t{0}).put_bytes(Bytes(10));
  drain.put(uint8_t{3}).put(uint8_t{1}).put(uint64_t{5});
  note.put(uint8_t{6}).put(uint8_t{1}).put(uint32_t{7}).put(uint32_t{0}).put_bytes(Bytes(10));
  confirmed.put(uint8_t{6}).put(uint8_t{2}).put(uint32_t{7});
  error.put(uint8_t{7}).put_raw(encode_result(failed));
  return {failure.take(), exchange.take(), drain.take(), note.take(), confirmed.take(), error.take()};
}

}  // namespace

TEST_CASE("a control message that is cut neither fails a communicator nor is answered, in all of its life") {
  ContextOptions options;
  options.mode = Engine::Mode::kCaller;
  options.host = &host_ops();
  std::shared_ptr<Context> context;
  REQUIRE(Context::create(std::move(options), &context).ok());
  const std::vector<Bytes> messages = control_messages();
  for (size_t type = 0; type < messages.size(); type++) {
    INFO("type " << static_cast<int>(messages[type][0]));
    ControlListener* listener = nullptr;
    std::atomic<int> sent{0};
    const std::shared_ptr<Comm> comm = Comm::create(
        context, 0, 3, {}, std::make_unique<HeldWire>(&listener, &sent), std::make_unique<NoCollectives>());
    REQUIRE(comm != nullptr);
    const std::unique_ptr<Exchange> part = comm->subgroup(1, {0, 2});
    const auto deliver_cut = [&] {
      const int before = sent;
      const bool failed = comm->failed();
      for (size_t cut = 0; cut < messages[type].size(); cut++) {
        listener->on_message(2, ByteView(messages[type]).first(cut));
        CHECK(comm->failed() == failed);
      }
      CHECK(sent == before);
    };
    deliver_cut();
    std::vector<Bytes> all;
    const Status waited = part->all_gather({}, &all, in_ms(1));  // amid a split
    CHECK(waited.code() == Code::kTimeout);
    CHECK(waited.info().ranks == std::vector<int>{2});
    deliver_cut();
    comm->fail(Status::error(Code::kCancelled, "the test ends it"), false);
    deliver_cut();
    CHECK(comm->close().ok());
  }
}

// ---- the framed transport ------------------------------------------------------------------------------

namespace {

using namespace weft::framed;

constexpr uint64_t kToken = 0x1234;
constexpr int kSender = 0;

class NoLink final : public Link {
 public:
  Status open(LinkEvents&, Bytes*) override { return {}; }
  Status connect(int, ByteView, LinkLimits*) override { return {}; }
  bool send(int, ByteView, ByteView, InFlightFrame&) override { return false; }
  bool progress() override { return false; }
  void close(int) override {}
  void stop() override {}
  bool settled() override { return true; }
  std::string path(int) const override { return {}; }
  std::string about() const override { return {}; }
  const char* name() const override { return "test"; }
};

template <class Frame>
Bytes bytes_of(Frame frame) {
  frame.token = kToken;
  frame.from = kSender;
  const ByteView bytes = std::as_bytes(std::span(&frame, 1));
  return {bytes.begin(), bytes.end()};
}

struct FrameCase {
  Bytes head;
  Bytes data;   // a length that fits
  Bytes other;  // one that does not
  const char* about;
};

// Returns frames of each kind and note; one without a head for a kind that this table lacks.
std::vector<FrameCase> frame_cases() {
  std::vector<FrameCase> cases;
  for (const FrameKind kind : enumerators<FrameKind>()) {
    switch (kind) {
      case FrameKind::kMessage:
        cases.push_back(
            {bytes_of(Header{.slot = 1, .size = 100, .name = 7}), Bytes(40), Bytes(101), "message"});
        cases.push_back(
            {bytes_of(Header{.slot = 1, .size = 100, .name = 7, .offered = 1}), {}, Bytes(1), "offer"});
        break;
      case FrameKind::kFragment:
        cases.push_back({bytes_of(Fragment{.name = 7, .offset = 40}), Bytes(60), Bytes(61), "fragment"});
        break;
      case FrameKind::kNote:
        for (const NoteKind note : enumerators<NoteKind>())
          cases.push_back({bytes_of(Note{.what = note, .first = 7}), {}, Bytes(1), "note"});
        break;
      default:
        cases.push_back({{}, {}, {}, "a new kind"});
    }
  }
  return cases;
}

// The states of a receiver: no receive, one that waits, a message of which 40 bytes have arrived, and a
// receive of it that was cancelled.
enum FrameState { kIdle, kWaits, kAmid, kCancelled, kFrameStates };

struct FramedRig {
  explicit FramedRig(int state) {
    transport.peer(kSender).token_in = kToken;
    if (state == kIdle) return;
    transport.receive(kSender, {1, 0, 0}, room.data(), 100, &message);
    if (state == kWaits) return;
    transport.on_frame(bytes_of(Header{.slot = 1, .size = 100, .name = 7}), Bytes(40, std::byte{1}));
    if (state == kCancelled) transport.cancel(&message);
  }
  bool broken() { return transport.peer(kSender).broken; }

  Log log;
  Bytes room = Bytes(100);
  Message message;
  FramedTransport transport{1, 2, std::make_unique<NoLink>(), system_clock, log};
};

}  // namespace

TEST_CASE("frames whose head is cut are discarded, and a wrong length of the data names its sender") {
  const std::vector<FrameCase> cases = frame_cases();
  CHECK(enumerators<FrameKind>().size() == 3);
  CHECK(enumerators<NoteKind>().size() == 4);
  for (int state = 0; state < kFrameStates; state++) {
    for (const FrameCase& each : cases) {
      INFO(each.about << " in state " << state);
      REQUIRE(!each.head.empty());  // the table has a row for each kind
      for (const size_t cut : cuts(sizeof(FrameKind), each.head.size())) {
        if (cut == each.head.size()) continue;
        FramedRig rig(state);
        const Bytes before = rig.room;
        rig.transport.on_frame(ByteView(each.head).first(cut), each.data);
        rig.transport.on_frame(ByteView(each.head).first(cut), {});
        CHECK(!rig.broken());
        CHECK(rig.room == before);
        CHECK(rig.message.done == (state == kCancelled));
      }
      FramedRig rig(state);
      rig.transport.on_frame(each.head, each.other);
      INFO(rig.transport.peer(kSender).why.text());
      // A fragment of a message that is not there may belong to one that was cancelled.
      const bool fragment = each.about == std::string_view("fragment");
      CHECK(rig.broken() == (!fragment || state == kAmid));
      if (!rig.broken()) continue;
      CHECK(rig.transport.peer(kSender).why.info().ranks == std::vector<int>{kSender});
      if (state != kAmid || !fragment) continue;
      // The operation that waits for the rank ends soon, with that error.
      for (int i = 0; i < 2000 && !rig.message.done; i++) {
        rig.transport.progress();
        ::poll(nullptr, 0, 1);
      }
      CHECK(rig.message.done);
      CHECK(rig.message.status.info().ranks == std::vector<int>{kSender});
    }
  }
}

TEST_CASE("a note of an unknown kind names its sender") {
  for (const uint32_t kind : {0u, 5u, UINT32_MAX}) {
    FramedRig rig(kWaits);
    rig.transport.on_frame(bytes_of(Note{.what = static_cast<NoteKind>(kind)}), {});
    CHECK(rig.broken());
  }
}

}  // namespace unit_cut_messages
