// Messages on a communicator's control channel that are whole on the connection and cut inside. Each type
// has a row, with an effect that the whole message has and a cut one must not have.
#include <algorithm>

#include "adversary_rig.h"
#include "comm/comm.h"
#include "comm/context.h"
#include "comm/message_type.h"
#include "kernels/host_ops.h"
#include "transport/result.h"

namespace unit_cut_control {

using namespace weft;
using namespace weft::test;

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

// Time passes only while somebody waits.
class WaitClock final : public Clock {
 public:
  static constexpr uint64_t kBeginNs = 1'000'000'000;
  uint64_t now_ns() override { return now_ns_; }
  void relax(uint32_t /*round*/) override { now_ns_ += 100'000; }
  void sleep(const std::atomic<uint32_t>& /*word*/, uint32_t /*expected*/, uint64_t /*until_ns*/) override {}
  void wake_all(const std::atomic<uint32_t>& /*word*/) override {}

 private:
  std::atomic<uint64_t> now_ns_{kBeginNs};
};

constexpr uint32_t kLane = 5;

struct Sent {
  int to;
  Bytes message;
  bool operator==(const Sent&) const = default;
};

// The channel of a rank of three. The test delivers the others' messages, and sees this rank's.
struct Channel {
  ControlListener* listener = nullptr;
  std::vector<Sent> sent;
  std::function<void(int to, ByteView message)> on_send = [](int, ByteView) {};
};

class HeldWire final : public Control {
 public:
  explicit HeldWire(Channel& channel) : channel_(channel) {}
  void start(ControlListener* listener) override { channel_.listener = listener; }
  void send(int rank, ByteView message) override {
    channel_.sent.push_back({rank, Bytes(message.begin(), message.end())});
    channel_.on_send(rank, message);
  }
  void leave() override {}
  void stop() override { channel_.listener = nullptr; }

 private:
  Channel& channel_;
};

struct Notes final : LaneMessageListener {
  void on_lane_message(int /*rank*/, ByteView note) override { heard.emplace_back(note.begin(), note.end()); }
  std::vector<Bytes> heard;
};

// A communicator of three ranks.
class Rig {
 public:
  explicit Rig(int rank) {
    ContextOptions options;
    options.mode = Engine::Mode::kCaller;
    options.host = &host_ops();
    options.clock = clock;
    options.status = false;
    options.log_level = LogLevel::kWarn;
    options.log_sink = [this](LogLevel, const char* line) { warnings.emplace_back(line); };
    REQUIRE(Context::create(std::move(options), &context).ok());
    comm = Comm::create(context, rank, 3, {}, std::make_unique<HeldWire>(channel),
                        std::make_unique<NoCollectives>());
    REQUIRE(comm != nullptr);
    comm->lane_messages().listen(kLane, notes);
  }
  ~Rig() {
    comm->fail(Status::error(Code::kCancelled, "the test ends it"), false);
    CHECK(comm->close().ok());
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  Deadline soon() { return Deadline::after(*clock, 1, 0); }
  void deliver(int from, ByteView message) { channel.listener->on_message(from, message); }
  // Returns true if this rank has sent a message that begins with these bytes.
  bool has_sent(int to, const Bytes& begin) const { return count_sent(to, begin) > 0; }
  int64_t count_sent(int to, const Bytes& begin) const {
    return std::count_if(channel.sent.begin(), channel.sent.end(), [&](const Sent& each) {
      return each.to == to && each.message.size() >= begin.size() &&
             std::equal(begin.begin(), begin.end(), each.message.begin());
    });
  }
  // Returns true if this rank fails with the error that rank 2 has announced when the rank ends.
  bool knows_error_of_2() {
    channel.listener->on_peer_lost(2, Status::error(Code::kPeerFailed, "rank 2 is gone", Evidence::kProcess));
    return comm->failure().text().find("a text") != std::string::npos;
  }
  // Returns true if rank 0's part of an exchange with rank 2 ends with these bytes of rank 2.
  static bool ends(Exchange& part, Deadline deadline, const Bytes& theirs) {
    std::vector<Bytes> all;
    return part.all_gather({}, &all, deadline).ok() && all[1] == theirs;
  }

  std::shared_ptr<WaitClock> clock = std::make_shared<WaitClock>();
  Channel channel;
  std::shared_ptr<Notes> notes = std::make_shared<Notes>();
  std::vector<std::string> warnings;
  std::shared_ptr<Context> context;
  std::shared_ptr<Comm> comm;
};

template <class... Values>
Bytes message(MessageType type, Values... values) {
  ByteWriter writer;
  writer.put(type);
  (writer.put(values), ...);
  return writer.take();
}

Bytes with_bytes(const Bytes& begin, const Bytes& bytes) {
  ByteWriter writer;
  return writer.put_raw(begin).put_bytes(bytes).take();
}

const Bytes kTen = Bytes(10, std::byte{3});
constexpr uint32_t kExchange = 2, kNote = 7;

Bytes failure_message() {
  ByteWriter writer;
  writer.put(MessageType::kFailure).put(Code::kPeerFailed).put(Evidence::kProcess);
  writer.put(uint64_t{3}).put(uint64_t{4}).put(uint32_t{1}).put(int32_t{2});
  return writer.put_string("a text").take();
}

Bytes error_message() {
  ByteWriter writer;
  const Status error = Status::error(Code::kMismatch, "a text").with_ranks({2});
  return writer.put(MessageType::kAgreedError).put_raw(encode_result(error)).take();
}

Bytes prepare_message() {
  return message(MessageType::kConsensus, uint32_t{1}, Consensus::Kind::kPrepare, uint64_t{1} << 20,
                 uint64_t{0}, uint32_t{0}, uint32_t{0});
}

// A message, whole, and the rank that gets it. `works` delivers these bytes, and returns true if they had the
// effect of the whole message.
struct Row {
  const char* about;
  int rank;
  Bytes whole;
  bool (*works)(Rig& rig, ByteView bytes);
};

std::vector<Row> rows() {
  using Type = MessageType;
  return {
      {"the sender's failure", 0, failure_message(),
       [](Rig& rig, ByteView bytes) {
         rig.deliver(2, bytes);
         return rig.comm->failure().text().find("a text") != std::string::npos;
       }},
      {"a round of a split", 0, with_bytes(message(Type::kExchange, kExchange, uint32_t{0}), kTen),
       [](Rig& rig, ByteView bytes) {
         const std::unique_ptr<Exchange> part = rig.comm->subgroup(kExchange, {0, 2});
         rig.deliver(2, bytes);
         return Rig::ends(*part, rig.soon(), kTen);
       }},
      {"a rank leaves", 0, message(Type::kDrain, uint8_t{1}, uint64_t{0}),
       [](Rig& rig, ByteView bytes) {
         rig.deliver(2, bytes);
         bool polled = false;
         rig.context->engine().poll_tasks(&polled);
         return rig.has_sent(2, message(Type::kDrain, uint8_t{2}));
       }},
      {"a rank has everything", 0, message(Type::kDrain, uint8_t{2}),
       [](Rig& rig, ByteView bytes) {
         rig.deliver(1, message(Type::kDrain, uint8_t{2}));
         rig.deliver(2, bytes);
         CHECK(rig.comm->close().ok());
         return rig.warnings.empty();  // else it left although not all have its messages
       }},
      {"a vote", 0, prepare_message(),
       [](Rig& rig, ByteView bytes) {
         rig.deliver(2, bytes);
         return rig.has_sent(2, message(Type::kConsensus, uint32_t{1}, Consensus::Kind::kPromise));
       }},
      {"a round of the survivors", 0,
       with_bytes(message(Type::kSurvivorsExchange, kExchange, uint32_t{0}), kTen),
       [](Rig& rig, ByteView bytes) {
         const std::shared_ptr<Generations> all = rig.comm->generation().generations;
         const std::unique_ptr<Exchange> part = all->exchange({all, kExchange, {0, 2}}, 0);
         rig.deliver(2, bytes);
         return Rig::ends(*part, rig.soon(), kTen);
       }},
      {"a note is heard", 0, with_bytes(message(Type::kLaneMessage, uint8_t{1}, kNote, kLane), kTen),
       [](Rig& rig, ByteView bytes) {
         rig.deliver(2, bytes);
         return rig.notes->heard == std::vector<Bytes>{kTen};
       }},
      {"a note is confirmed", 0, with_bytes(message(Type::kLaneMessage, uint8_t{1}, kNote, kLane), kTen),
       [](Rig& rig, ByteView bytes) {
         rig.deliver(2, bytes);
         return rig.has_sent(2, message(Type::kLaneMessage, uint8_t{2}, kNote));
       }},
      {"a confirmation", 0, message(Type::kLaneMessage, uint8_t{2}, uint32_t{0}),
       [](Rig& rig, ByteView bytes) {
         rig.channel.on_send = [&](int to, ByteView note) {
           const ByteView id = note.subspan(2, sizeof(uint32_t));
           const Bytes confirmed = ByteWriter().put(Type::kLaneMessage).put(uint8_t{2}).put_raw(id).take();
           rig.deliver(to, to == 2 ? bytes : confirmed);
         };
         const bool confirmed = rig.comm->lane_messages().send(kLane, kTen, rig.soon()).ok();
         rig.channel.on_send = [](int, ByteView) {};
         return confirmed;
       }},
      {"an agreed error", 0, error_message(),
       [](Rig& rig, ByteView bytes) {
         rig.deliver(2, bytes);
         return rig.knows_error_of_2();
       }},
      {"a rank continues", 0, message(Type::kContinues),
       [](Rig& rig, ByteView bytes) {
         rig.deliver(2, error_message());
         rig.deliver(2, bytes);
         return !rig.knows_error_of_2();
       }},
      {"a question for the time", 0, message(Type::kClockQuestion, uint64_t{77}),
       [](Rig& rig, ByteView bytes) {
         rig.deliver(2, bytes);
         return rig.has_sent(2, message(Type::kClockAnswer, uint64_t{77}));
       }},
      {"the time", 1, message(Type::kClockAnswer, WaitClock::kBeginNs, uint64_t{9}),
       [](Rig& rig, ByteView bytes) {
         rig.comm->clock_probe().ask();
         rig.deliver(0, bytes);
         return rig.count_sent(0, message(Type::kClockQuestion)) == 2;  // it asks again
       }},
  };
}

// Lets rank 2 miss a split. The communicator works afterwards.
void split_in_vain(Rig& rig) {
  const std::unique_ptr<Exchange> part = rig.comm->subgroup(1, {0, 2});
  std::vector<Bytes> all;
  const Status waited = part->all_gather({}, &all, rig.soon());
  CHECK(waited.code() == Code::kTimeout);
  CHECK(waited.info().ranks == std::vector<int>{2});
}

}  // namespace

TEST_CASE("each type of control message has a row") {
  const std::vector<Row> all = rows();
  for (const MessageType type : enumerators<MessageType>()) {
    INFO("type " << static_cast<int>(type));
    CHECK(std::any_of(all.begin(), all.end(),
                      [&](const Row& row) { return row.whole[0] == static_cast<std::byte>(type); }));
  }
}

TEST_CASE("a control message that is whole has its effect, and one that is cut has none") {
  for (const bool after_split : {false, true}) {
    for (const Row& row : rows()) {
      INFO(row.about << (after_split ? ", after a split" : ""));
      for (size_t cut = 0; cut <= row.whole.size(); cut++) {
        Rig rig(row.rank);
        if (after_split && row.rank == 0) split_in_vain(rig);
        INFO(cut << " of " << row.whole.size() << " bytes");
        CHECK(row.works(rig, ByteView(row.whole).first(cut)) == (cut == row.whole.size()));
      }
    }
  }
}

TEST_CASE("a control message that is cut is not answered in a communicator that has failed") {
  for (const Row& row : rows()) {
    INFO(row.about);
    Rig rig(row.rank);
    rig.comm->fail(Status::error(Code::kAborted, "it has failed"), false);
    const std::vector<Sent> before = rig.channel.sent;
    for (size_t cut = 0; cut < row.whole.size(); cut++) {
      rig.deliver(row.rank == 0 ? 2 : 0, ByteView(row.whole).first(cut));
      bool polled = false;
      rig.context->engine().poll_tasks(&polled);
    }
    CHECK(rig.channel.sent == before);
    CHECK(rig.comm->failure().text() == "it has failed");
  }
}

}  // namespace unit_cut_control
