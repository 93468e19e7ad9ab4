// comm/lane: when a request of a failed communicator completes, over a backend that the test controls.
#include "comm/lane.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "device/arena.h"
#include "kernels/host_ops.h"
#include "support/catch.h"

namespace unit_lane {

using namespace weft;

namespace {

// State that the test and the backend share.
struct World {
  std::vector<int> writers;     // guarded by the progress lock
  std::vector<int> missing{1};  // of Endless
  std::atomic<bool> abandoned{false}, tainted{false};
  // Used by Scripted, under the progress lock. begun: the slots of started operations, in order. ended: the
  // result of each operation that is to end, by slot.
  std::vector<uint64_t> begun;
  std::map<uint64_t, Status> ended;
  std::map<uint64_t, std::vector<int>> writers_of;  // by slot
  // Control messages by destination; -1: the goodbye.
  std::vector<std::pair<int, Bytes>> sent;
};

// A lane whose operations never end by themselves.
class Endless final : public CollectiveLane {
 public:
  explicit Endless(World& world) : world_(world) {}
  void start(const CollectiveArgs&, uint64_t) override {}
  Poll poll() override { return Poll::kWaiting; }
  Status result() const override { return {}; }
  void abandon() override { world_.abandoned = true; }
  std::vector<int> writers() const override { return world_.writers; }
  std::vector<int> missing() const override { return world_.missing; }
  const char* algorithm() const override { return "endless"; }

 private:
  World& world_;
};

// A lane whose operations end when the test says so.
class Scripted final : public CollectiveLane {
 public:
  explicit Scripted(World& world) : world_(world) {}
  void start(const CollectiveArgs&, uint64_t slot) override {
    slot_ = slot;
    world_.begun.push_back(slot);
  }
  Poll poll() override { return world_.ended.contains(slot_) ? Poll::kFinished : Poll::kWaiting; }
  Status result() const override { return world_.ended.at(slot_); }
  void abandon() override {}
  std::vector<int> writers() const override {
    const auto found = world_.writers_of.find(slot_);
    return found != world_.writers_of.end() ? found->second : std::vector<int>();
  }
  std::vector<int> missing() const override { return {1}; }
  const char* algorithm() const override { return "scripted"; }

 private:
  World& world_;
  uint64_t slot_ = 0;
};

class NoArena final : public Arena {
 public:
  explicit NoArena(World& world) : world_(world) {}
  Status allocate(uint64_t, std::byte**) override { return Status::error(Code::kNoMemory, "none"); }
  Status free(std::byte*) override { return {}; }
  uint64_t populated_bytes() const override { return 0; }
  void taint() override { world_.tainted = true; }

 private:
  World& world_;
};

class Backend final : public Collectives {
 public:
  explicit Backend(World& world) : world_(world), arena_(std::make_shared<NoArena>(world)) {}
  Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) override {
    if (key.id == 0) {
      *lane = std::make_unique<Endless>(world_);
    } else {
      *lane = std::make_unique<Scripted>(world_);
    }
    return {};
  }
  bool overlaps() const override { return true; }
  std::shared_ptr<Arena> arena() override { return arena_; }
  CollectiveCounters counters() const override { return {}; }
  int local_size() const override { return 3; }
  const char* name() const override { return "test"; }

 private:
  World& world_;
  const std::shared_ptr<NoArena> arena_;
};

// Records what is sent.
class Silence final : public Control {
 public:
  explicit Silence(World& world) : world_(world) {}
  void start(ControlListener*) override {}
  void send(int rank, ByteView message) override {
    world_.sent.emplace_back(rank, Bytes(message.begin(), message.end()));
  }
  void leave() override { world_.sent.emplace_back(-1, Bytes()); }
  void stop() override {}

 private:
  World& world_;
};

// Rank 0 of 3 with one operation in progress, whose communicator then fails.
struct Failing {
  using Writer = std::function<Status(const FlightRecord&, const std::string&)>;
  explicit Failing(Writer write_flight = {}, ContextOptions options = {}) {
    options.write_flight = std::move(write_flight);
    options.mode = Engine::Mode::kCaller;
    options.host = &host_ops();
    REQUIRE(Context::create(std::move(options), &context).ok());
    CommOptions comm_options;
    comm_options.flight_path = "somewhere";
    comm = Comm::create(context, 0, 3, std::move(comm_options), std::make_unique<Silence>(world),
                        std::make_unique<Backend>(world));
    REQUIRE(comm != nullptr);
    request.args.coll = Coll::kBarrier;
    std::shared_ptr<Lane> lane;
    REQUIRE(comm->lane_for(request.args, &lane).ok());
    lane->submit(&request);
    drive();
    REQUIRE(!request.done());
  }
  void fail() { comm->fail(Status::error(Code::kTimeout, "too late")); }
  void drive() {
    bool had_lock = false;
    context->engine().poll_tasks(&had_lock);
  }
  // Returns true if the request completes within this time.
  bool completes(int64_t within_ms) {
    return context->engine().wait([&] { return request.done(); },
                                  Deadline::after(context->clock(), within_ms, 0));
  }
  World world;
  Request request;  // outlives the communicator, which completes it
  std::shared_ptr<Context> context;
  std::shared_ptr<Comm> comm;
};

}  // namespace

TEST_CASE("a failed operation completes at once if no rank writes into its buffers") {
  Failing f;
  f.fail();
  f.drive();
  CHECK(f.request.done());
  CHECK(f.request.result.code() == Code::kTimeout);
  CHECK(f.world.abandoned);
  CHECK(!f.world.tainted);
}

TEST_CASE("a failed operation completes when the last rank has stopped writing into its buffers") {
  Failing f;
  f.world.writers = {1, 2};
  f.fail();
  for (int i = 0; i < 100; i++) f.drive();
  CHECK(f.world.abandoned);
  CHECK(!f.request.done());
  f.context->engine().locked([&] { f.world.writers = {2}; });
  f.drive();
  CHECK(!f.request.done());
  f.context->engine().locked([&] { f.world.writers.clear(); });
  f.drive();
  CHECK(f.request.done());
  CHECK(!f.world.tainted);
}

TEST_CASE("a failed operation does not wait for a dead rank, but for a silent one until the fence ends") {
  Failing f;
  f.world.writers = {1};
  f.comm->on_peer_lost(1, Status::error(Code::kPeerFailed, "killed", Evidence::kProcess).with_ranks({1}));
  f.drive();
  CHECK(f.request.done());
  CHECK(!f.world.tainted);

  Failing g;
  g.world.writers = {1};
  g.comm->on_peer_lost(1, Status::error(Code::kPeerFailed, "silent", Evidence::kHeartbeat).with_ranks({1}));
  g.drive();
  CHECK(!g.request.done());
  CHECK(g.completes(20'000));
  CHECK(g.world.tainted);
}

TEST_CASE("closing a communicator waits for writers as well") {
  Failing f;
  f.world.writers = {1};
  CHECK(f.comm->close().ok());
  CHECK(f.request.done());
  CHECK(f.request.result.code() == Code::kCancelled);
  CHECK(f.world.tainted);
}

namespace {

// A control message of rank 2 that reports a failure.
Bytes report(const std::vector<int32_t>& ranks) {
  ByteWriter message;
  message.put(uint8_t{1}).put(Code::kTimeout).put(Evidence::kDeadline).put(uint64_t{7}).put(uint64_t{0});
  message.put(static_cast<uint32_t>(ranks.size()));
  for (const int32_t rank : ranks) message.put(rank);
  return message.put_string("it waited").take();
}

}  // namespace

TEST_CASE("a reported failure names ranks of the communicator only") {
  Failing f;
  f.comm->on_message(2, report({-1, 1, 3}));
  f.drive();
  CHECK(f.comm->failure().text() == "rank 2 reports: it waited");
  CHECK(f.comm->failure().info().ranks == std::vector<int>{1});
  CHECK(f.request.result.code() == Code::kTimeout);

  Failing g;
  g.comm->on_message(2, report({0, 1, 2, 2}));  // more than there are
  CHECK(!g.comm->failed());
}

TEST_CASE("a rank that leaves because of a failure sends that failure before its goodbye") {
  Failing f;
  f.comm->on_message(2, report({1}));
  f.drive();
  CHECK(f.world.sent.empty());  // rank 2 sends it to all ranks itself
  CHECK(f.comm->close().ok());
  REQUIRE(f.world.sent.size() == 3);
  for (size_t i = 0; i < 2; i++) {
    CHECK(f.world.sent[i].first == static_cast<int>(i) + 1);
    ByteReader message(f.world.sent[i].second);
    CHECK(message.get<uint8_t>() == 1);
    CHECK(message.get<Code>() == Code::kTimeout);
  }
  CHECK(f.world.sent[2].first == -1);
}

TEST_CASE("a failed operation completes once its flight record is written, and the record describes it") {
  std::atomic<bool> begun{false}, may_end{false};
  FlightRecord seen;
  std::string folder;
  Failing f([&](const FlightRecord& record, const std::string& where) {
    seen = record;
    folder = where;
    begun = true;
    SystemClock clock;
    for (uint32_t round = 0; !may_end; round++) clock.relax(round);
    return Status();
  });
  const auto drive_until = [&](const auto& done) {
    const Deadline deadline = Deadline::after(f.context->clock(), 10'000, 0);
    while (!done() && !deadline.expired(f.context->clock())) f.drive();
    return done();
  };
  f.fail();
  REQUIRE(drive_until([&] { return begun.load(); }));
  f.drive();
  CHECK(f.world.abandoned);
  CHECK(!f.request.done());
  may_end = true;
  CHECK(drive_until([&] { return f.request.done(); }));
  CHECK(f.request.result.code() == Code::kTimeout);
  CHECK(folder == "somewhere");
  CHECK(seen.size == 3);
  CHECK(seen.failure.text() == "too late");
  REQUIRE(seen.lanes.size() == 1);
  CHECK(seen.lanes[0].next_slot == 1);
  CHECK(seen.lanes[0].waits_for == std::vector<int>{1});
  REQUIRE(seen.lanes[0].operations.size() == 1);
  CHECK(seen.lanes[0].operations[0].call.text() == "barrier");
  CHECK(seen.lanes[0].operations[0].state == FlightOperation::State::kRunning);
}

TEST_CASE("a file system that hangs delays neither the failed operation nor the communicator's end") {
  // Objects that the writer uses outlive the test case, because its thread is detached.
  const auto may_end = std::make_shared<std::atomic<bool>>(false);
  {
    Failing f([may_end](const FlightRecord&, const std::string&) {
      SystemClock clock;
      for (uint32_t round = 0; !*may_end; round++) clock.relax(round);
      return Status();
    });
    f.fail();
    CHECK(f.completes(10'000));
    CHECK(f.comm->close().ok());
  }
  *may_end = true;
}

TEST_CASE("a communicator that is destroyed writes no flight record") {
  std::atomic<bool> written{false};
  Failing f([&](const FlightRecord&, const std::string&) {
    written = true;
    return Status();
  });
  CHECK(f.comm->close().ok());
  CHECK(f.request.done());
  CHECK(!written);
}

TEST_CASE("a lane's ring keeps the last operations, oldest first") {
  FlightRing ring(4);
  CollectiveArgs args;
  args.coll = Coll::kBarrier;
  CHECK(ring.operations(0).empty());
  CHECK(ring.operations(900, 900).empty());  // for a lane that continues where another one ended
  for (uint64_t slot = 0; slot < 6; slot++) {
    ring.started(args, slot);
    if (slot < 5) ring.finished(slot, "tree", slot != 4);
  }
  ring.waiting(5, 77);
  const std::vector<FlightOperation> last = ring.operations(6);
  REQUIRE(last.size() == 4);
  for (uint64_t i = 0; i < 4; i++) CHECK(last[i].slot == i + 2);
  CHECK(last[1].state == FlightOperation::State::kFinished);
  CHECK(last[2].state == FlightOperation::State::kFailed);
  CHECK(last[3].state == FlightOperation::State::kRunning);
  CHECK(last[3].waiting_since_ns == 77);
}

namespace {

class Idle final : public CollectiveLane {
 public:
  void start(const CollectiveArgs&, uint64_t) override {}
  Poll poll() override { return Poll::kFinished; }
  Status result() const override { return {}; }
  void abandon() override {}
  std::vector<int> missing() const override { return {}; }
  const char* algorithm() const override { return "none"; }
};

Bytes written(const ClosedLanes& lanes) {
  ByteWriter writer;
  lanes.write(&writer);
  return writer.take();
}

ClosedLanes::Published published(const ClosedLanes& lanes) {
  const Bytes message = written(lanes);
  ByteReader reader(message);
  ClosedLanes::Published published = ClosedLanes::read(&reader);
  CHECK(reader.done());
  return published;
}

}  // namespace

TEST_CASE("a closed lane is reused once all ranks have closed it after equally many operations") {
  ClosedLanes mine, theirs;
  for (const uint32_t id : {2u, 5u, 7u, 9u}) mine.keep(id, {std::make_shared<Idle>(), id * 10});
  theirs.keep(5, {std::make_shared<Idle>(), 50});
  theirs.keep(7, {std::make_shared<Idle>(), 71});  // one operation more than here
  theirs.keep(9, {std::make_shared<Idle>(), 90});
  theirs.keep(11, {std::make_shared<Idle>(), 1});
  mine.compare({published(mine), published(theirs)});
  uint32_t id = 0;
  ClosedLanes::Entry lane;
  mine.keep(3, {std::make_shared<Idle>(), 30});  // closed since then: the other ranks do not know
  REQUIRE(mine.take(&id, &lane));
  CHECK((id == 5 && lane.next_slot == 50 && lane.impl != nullptr));
  REQUIRE(mine.take(&id, &lane));
  CHECK(id == 9);
  CHECK_FALSE(mine.take(&id, &lane));
  mine.compare({});
  CHECK_FALSE(mine.take(&id, &lane));
}

TEST_CASE("invalid bytes of another rank about closed lanes are ignored") {
  ClosedLanes mine;
  mine.keep(1, {std::make_shared<Idle>(), 4});
  const Bytes whole = written(mine);
  for (size_t size = 0; size < whole.size(); size++) {
    ByteReader reader(ByteView(whole).first(size));
    mine.compare({published(mine), ClosedLanes::read(&reader)});
    CHECK_FALSE(reader.ok());
    uint32_t id = 0;
    ClosedLanes::Entry lane;
    CHECK_FALSE(mine.take(&id, &lane));
  }
  const Bytes noise(64, std::byte{0xff});
  ByteReader reader(noise);
  CHECK(ClosedLanes::read(&reader).empty());
  CHECK_FALSE(reader.ok());
}

namespace {

// Some operations on a lane of their own, next to the operation that never ends.
struct Overlap : Failing {
  explicit Overlap(bool overlapping, ContextOptions options = {})
      : Failing({}, std::move(options)), lane(open(*comm, overlapping)) {
    for (Request& request : requests) {
      request.args.coll = Coll::kBarrier;
      lane->submit(&request);
    }
    drive();
  }
  ~Overlap() { (void)comm->close().ok(); }  // completes the requests
  static std::shared_ptr<Lane> open(Comm& comm, bool overlapping) {
    std::shared_ptr<Lane> lane;
    REQUIRE(comm.open_lane(&lane, overlapping).ok());
    return lane;
  }
  void end(uint64_t slot, Status status = {}) {
    context->engine().locked([&] { world.ended[slot] = std::move(status); });
    drive();
  }
  bool done(size_t i) { return requests[i].done(); }
  std::array<Request, 4> requests;
  std::shared_ptr<Lane> lane;
};

using Slots = std::vector<uint64_t>;

}  // namespace

TEST_CASE("a communicator that has used all lane numbers opens no further lane, and says so") {
  ContextOptions context_options;
  context_options.mode = Engine::Mode::kCaller;
  context_options.host = &host_ops();
  std::shared_ptr<Context> context;
  REQUIRE(Context::create(std::move(context_options), &context).ok());
  CommOptions options;
  REQUIRE(FailPoints::parse(cat("reducers=begin:", LaneKey::kMostIds - 1), &options.failpoints).ok());
  World world;
  const auto comm = Comm::create(context, 0, 1, std::move(options), std::make_unique<Silence>(world),
                                 std::make_unique<Backend>(world));
  REQUIRE(comm != nullptr);
  std::shared_ptr<Lane> lane, further;
  REQUIRE(comm->open_lane(&lane).ok());
  CHECK(lane->key().id == LaneKey::kMostIds - 1);
  const Status refused = comm->open_lane(&further);
  CHECK(refused.code() == Code::kUnsupported);
  CHECK(refused.text().find("weft_comm_split") != std::string::npos);
  comm->close_lane(lane);
  CHECK(comm->open_lane(&further).code() == Code::kUnsupported);
  (void)comm->close().ok();
}

TEST_CASE("operations of a lane run one after the other") {
  Overlap o(false);
  CHECK(o.world.begun == Slots{0});
  o.end(0);
  o.drive();
  CHECK(o.done(0));
  CHECK(o.world.begun == Slots{0, 1});
}

TEST_CASE("a request is started at once only if no other one is before it") {
  Overlap o(false);
  std::array<Request, 2> more;
  const auto start = [&](Request& request) {
    request.args.coll = Coll::kBarrier;
    return o.context->engine().try_locked([&] { return o.lane->start_at_once(&request); });
  };
  CHECK_FALSE(start(more[0]));  // four operations are before it
  for (uint64_t slot = 0; slot < 4; slot++) o.end(slot);
  for (int i = 0; i < 4; i++) o.drive();
  CHECK(o.done(3));
  CHECK(o.world.begun == Slots{0, 1, 2, 3});
  o.world.ended[4] = {};
  CHECK(start(more[0]));
  CHECK(more[0].done());  // with the first poll
  CHECK(o.lane->next_slot() == 5);
  o.fail();
  CHECK_FALSE(start(more[1]));
  CHECK(o.world.begun == Slots{0, 1, 2, 3, 4});
}

TEST_CASE(
    "operations of an overlapping lane start before the previous one has ended, and complete in order") {
  Overlap o(true);
  CHECK(o.world.begun == Slots{0, 1});
  o.end(1);
  CHECK(!o.done(0));
  CHECK(!o.done(1));
  CHECK(o.world.begun == Slots{0, 1});
  o.end(0);
  o.drive();
  CHECK(o.done(0));
  CHECK(o.done(1));
  CHECK(o.world.begun == Slots{0, 1, 2, 3});
  o.end(2);
  o.end(3);
  for (const Request& request : o.requests) CHECK(request.result.ok());
  CHECK(o.lane->idle());
  CHECK(o.lane->next_slot() == 4);
}

TEST_CASE("the failure of an operation does not wait for the previous one") {
  Overlap o(true);
  o.end(1, Status::error(Code::kMismatch, "they differ"));
  for (int i = 0; i < 10; i++) o.drive();
  CHECK(o.comm->failed());
  for (size_t i = 0; i < o.requests.size(); i++) {
    CHECK(o.done(i));
    CHECK(o.requests[i].result.code() == Code::kMismatch);
  }
}

TEST_CASE("the fence waits for the writers of every operation that runs") {
  Overlap o(true);
  o.world.writers_of[1] = {2};  // the second operation's
  o.fail();
  for (int i = 0; i < 100; i++) o.drive();
  CHECK(!o.done(0));
  CHECK(!o.done(1));
  o.context->engine().locked([&] { o.world.writers_of.clear(); });
  for (int i = 0; i < 10; i++) o.drive();
  CHECK(o.done(0));
  CHECK(o.done(1));
  CHECK(!o.world.tainted);
}

TEST_CASE("a rank that has said goodbye is missed only when another poll has found nothing of it") {
  Overlap o(false);
  o.world.missing = {};
  o.comm->on_peer_left(1);
  o.drive();
  CHECK(!o.comm->failed());
  o.end(0);  // its last message was here already
  CHECK(o.done(0));
  CHECK(o.requests[0].result.ok());
  for (int i = 0; i < 10; i++) o.drive();
  CHECK(o.comm->failure().code() == Code::kPeerFailed);
  CHECK(o.comm->failure().text().find("rank 1 left the communicator") != std::string::npos);
}

TEST_CASE("an overlapping lane whose communicator fails completes running and waiting operations") {
  Overlap o(true);
  o.end(1);
  o.fail();
  for (int i = 0; i < 10; i++) o.drive();
  for (size_t i = 0; i < o.requests.size(); i++) {
    CHECK(o.done(i));
    CHECK(o.requests[i].result.code() == Code::kTimeout);
  }
}

namespace {

// A clock that the test sets.
class SetClock final : public Clock {
 public:
  uint64_t now_ns() override { return ns; }
  void relax(uint32_t) override {}
  void sleep(const std::atomic<uint32_t>&, uint32_t, uint64_t) override {}
  void wake_all(const std::atomic<uint32_t>&) override {}
  std::atomic<uint64_t> ns{1'000'000'000};
};

}  // namespace

TEST_CASE("an operation without progress for five seconds is logged once, with the ranks it waits for") {
  const auto clock = std::make_shared<SetClock>();
  std::vector<std::string> lines;
  ContextOptions options;
  options.clock = clock;
  options.log_level = LogLevel::kWarn;
  options.log_sink = [&](LogLevel, const char* line) {
    if (std::string(line).find("no progress") != std::string::npos) lines.emplace_back(line);
  };
  Overlap o(false, options);
  const auto polls_at = [&](uint64_t seconds) {
    clock->ns = seconds * 1'000'000'000;
    for (int i = 0; i < 1000; i++) o.drive();
  };
  o.context->engine().locked([&] { o.requests[0].deadline = Deadline::at(301'000'000'000); });
  polls_at(1);
  polls_at(5);
  CHECK(lines.empty());
  polls_at(6);
  const auto of_lane = [&](const std::string& wanted) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.find(wanted) != std::string::npos; });
  };
  CHECK(lines.size() == 2);  // of the user's lane, too
  CHECK(of_lane("operation 0 (barrier) on rank 0 has made no progress for 5 s, waiting for rank 1") == 2);
  CHECK(of_lane("; it fails in 295 s") == 1);
  CHECK(of_lane("; it has no deadline") == 1);
  polls_at(100);
  CHECK(lines.size() == 2);
  o.end(0);
  polls_at(101);
  CHECK(lines.size() == 2);
  polls_at(106);
  CHECK(lines.size() == 3);
  CHECK(of_lane("operation 1 (barrier)") == 1);
}

}  // namespace unit_lane
