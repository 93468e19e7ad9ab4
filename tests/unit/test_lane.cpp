// core/lane: when a request of a failed communicator completes, over a backend that does what a test says.
#include "core/lane.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/comm.h"
#include "kernels/host_ops.h"
#include "support/catch.h"

using namespace weft;

namespace {

// What the test and the backend share.
struct World {
  std::vector<int> writers;  // under the drive lock
  std::atomic<bool> abandoned{false}, tainted{false};
};

// Operations never end by themselves.
class Endless final : public CollectiveLane {
 public:
  explicit Endless(World& world) : world_(world) {}
  void start(const CollectiveArgs&, uint64_t) override {}
  Poll poll() override { return Poll::kWaiting; }
  Status result() const override { return {}; }
  void abandon() override { world_.abandoned = true; }
  std::vector<int> writers() const override { return world_.writers; }
  std::vector<int> missing() const override { return {1}; }
  const char* algorithm() const override { return "endless"; }

 private:
  World& world_;
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
  Status open_lane(const LaneKey&, std::unique_ptr<CollectiveLane>* lane) override {
    *lane = std::make_unique<Endless>(world_);
    return {};
  }
  std::shared_ptr<Arena> arena() override { return arena_; }
  CollectiveCounters counters() const override { return {}; }
  int local_size() const override { return 3; }
  const char* name() const override { return "test"; }

 private:
  World& world_;
  const std::shared_ptr<NoArena> arena_;
};

class Silence final : public Control {
 public:
  void start(ControlListener*) override {}
  void send(int, ByteView) override {}
  void leave() override {}
  void stop() override {}
};

// Rank 0 of 3, with one operation under way, whose communicator then fails.
struct Failing {
  Failing() {
    ContextOptions options;
    options.mode = Engine::Mode::kCaller;
    options.host = &host_ops();
    REQUIRE(Context::create(std::move(options), &context).ok());
    comm = Comm::create(context, 0, 3, {}, std::make_unique<Silence>(), std::make_unique<Backend>(world));
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
    bool driven = false;
    context->engine().drive(&driven);
  }
  // Whether the request completes before so much time has passed.
  bool completes(int64_t within_ms) {
    return context->engine().wait([&] { return request.done(); },
                                  Deadline::after(context->clock(), within_ms, 0));
  }
  World world;
  std::shared_ptr<Context> context;
  std::shared_ptr<Comm> comm;
  Request request;
};

}  // namespace

TEST_CASE("a failed operation into whose buffers nobody writes completes at once") {
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

TEST_CASE("a dead rank is not waited for, one that is only silent is, until the fence's end") {
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
