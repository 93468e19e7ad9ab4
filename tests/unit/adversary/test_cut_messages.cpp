// Messages of members that are whole on the connection and cut inside: votes of the membership consensus, and
// frames of the framed transport, in each state of their receiver. A cut message has no effect, and the rank
// that sends nothing better is named within the deadline. test_cut_control.cpp has the control messages.
#include <cstring>
#include <tuple>

#include "adversary_rig.h"
#include "control/consensus.h"
#include "control/generations.h"
#include "framed/transport.h"

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

// Returns a valid vote of each kind; empty for a kind that this table lacks.
Bytes vote(Kind kind, uint64_t number) {
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
  writer.put(kind).put(number).put(uint64_t{0}).put(static_cast<uint32_t>(ranks.size()));
  for (const int32_t rank : ranks) writer.put(rank);
  return writer.put(uint32_t{0}).take();
}
// Returns the message that carries it; empty for a kind that the table lacks.
Bytes vote_message(Kind kind, uint64_t number) {
  const Bytes bytes = vote(kind, number);
  if (bytes.empty()) return {};
  ByteWriter writer;
  return writer.put(Generations::kConsensusMessage).put(uint32_t{1}).put_raw(bytes).take();
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

// Rank 0 of three shrinks, and rank 1 is lost. Rank 2 has given so many of the three answers.
struct Voter {
  explicit Voter(size_t answers) {
    self.lose(1);
    self.join(false);
    if (answers > 0) deliver(vote(Kind::kJoin, 0));
    self.advance(1);
    for (const auto& [to, message] : self.take_out()) {
      ByteReader reader(message);
      if (reader.get<Kind>() == Kind::kPrepare) number = reader.get<uint64_t>();
    }
    if (answers > 1) deliver(vote(Kind::kPromise, number));
    if (answers > 2) deliver(vote(Kind::kAccepted, number));
    self.take_out();
  }
  void deliver(ByteView message) {
    ByteReader reader(message);
    self.on_message(2, reader);
  }
  // Returns what a vote changes: what this rank sends, waits for and has decided.
  auto seen() {
    std::vector<Kind> sent;
    for (const auto& [to, message] : self.take_out()) {
      ByteReader reader(message);
      if (to == 2) sent.push_back(reader.get<Kind>());
    }
    return std::tuple(sent, self.awaited(), self.unanswered(), self.decided());
  }

  Consensus self{0, {0, 1, 2}};
  uint64_t number = 0;  // of this rank's proposal
};

// Returns the number of answers after which a vote of this kind has an effect.
size_t answers_before(Kind kind) {
  return kind == Kind::kPromise || kind == Kind::kRefuse ? 1 : kind == Kind::kAccepted ? 2 : 0;
}

}  // namespace

TEST_CASE("a vote on a shrink has its effect when it is whole, and none when it is cut") {
  for (const Kind kind : enumerators<Kind>()) {
    Voter voter(answers_before(kind));
    const uint64_t higher = voter.number + (uint64_t{1} << 20);
    const Bytes whole = vote(kind, kind == Kind::kPromise || kind == Kind::kAccepted ? voter.number : higher);
    const auto before = voter.seen();
    for (size_t cut = 0; cut < whole.size(); cut++) {
      INFO("kind " << static_cast<int>(kind) << " cut to " << cut);
      voter.deliver(ByteView(whole).first(cut));
      CHECK(voter.seen() == before);
    }
    INFO("kind " << static_cast<int>(kind) << ", whole");
    voter.deliver(whole);
    CHECK(voter.seen() != before);
  }
}

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
