// lib/coll/hierarchical: which ranks share a host, and all-gathers among the ranks of one host.
#include <map>
#include <mutex>
#include <thread>

#include "coll/hierarchical/grouping.h"
#include "coll/hierarchical/lane.h"
#include "coll/hierarchical/local_exchange.h"
#include "coll/progress_reports.h"
#include "environment/config.h"
#include "kernels/host_ops.h"
#include "support/catch.h"
#include "support/thread_group.h"

namespace unit_hierarchy {

using namespace weft;
using namespace weft::coll;
using namespace weft::test;

namespace {

std::vector<std::vector<uint8_t>> near_of(const std::vector<int>& hosts) {
  std::vector<std::vector<uint8_t>> near;
  for (const int mine : hosts) {
    near.emplace_back();
    for (const int other : hosts) near.back().push_back(mine == other ? 1 : 0);
  }
  return near;
}

Grouping grouping_of(int rank, const std::vector<int>& hosts) {
  Grouping grouping;
  REQUIRE(group_ranks(rank, near_of(hosts), &grouping).ok());
  return grouping;
}

}  // namespace

TEST_CASE("ranks are grouped by host however they are placed") {
  const Grouping turns = grouping_of(3, {7, 4, 7, 4});
  CHECK(turns.hosts == std::vector<std::vector<int>>{{0, 2}, {1, 3}});
  CHECK(turns.even);
  CHECK(turns.host() == 1);
  CHECK(turns.index() == 1);
  CHECK(turns.column() == std::vector<int>{2, 3});
  CHECK(turns.shares_host(1));
  CHECK_FALSE(turns.shares_host(2));
}

TEST_CASE("with uneven hosts only the leaders communicate between hosts") {
  const std::vector<int> hosts = {0, 1, 0, 2, 0};
  const Grouping leader = grouping_of(0, hosts);
  CHECK_FALSE(leader.even);
  CHECK(leader.widest == 3);
  CHECK(leader.column() == std::vector<int>{0, 1, 3});
  CHECK(grouping_of(2, hosts).column().empty());
}

TEST_CASE("ranks that do not see the same neighbours are named") {
  std::vector<std::vector<uint8_t>> near = near_of({0, 0, 1});
  near[0][2] = 1;
  Grouping grouping;
  const Status one_way = group_ranks(1, near, &grouping);
  CHECK(one_way.code() == Code::kUnavailable);
  CHECK(one_way.info().ranks == std::vector<int>{0, 1});
  near[2][0] = 1;  // 0 is near both, and they are not near each other
  CHECK_FALSE(group_ranks(1, near, &grouping).ok());
}

TEST_CASE("hosts that need different numbers of all-gathers finish together, and report a failure inside") {
  SystemClock clock;
  clock.set_crowded(true);
  ThreadGroup group(4, clock);
  std::vector<Status> seen(4);
  std::vector<size_t> gathered(4);
  std::vector<std::thread> threads;
  for (int r = 0; r < 4; r++) {
    threads.emplace_back([&, r] {
      const auto at = static_cast<size_t>(r);
      const std::vector<int> members = r % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
      const std::unique_ptr<Exchange> all = group.exchange(r);
      LocalExchange local(*all, members);
      const Deadline deadline = Deadline::after(clock, 10'000, 0);
      // Ranks 0, 1 and 2 need three all-gathers; rank 3 gives up after one.
      const int rounds = r == 3 ? 1 : 3;
      for (int i = 0; i < rounds && seen[at].ok(); i++) {
        std::vector<Bytes> answers;
        seen[at] = local.all_gather(Bytes(3, std::byte{1}), &answers, deadline);
        gathered[at] += answers.size();
      }
      const Status together = local.finish_together(deadline);
      if (seen[at].ok()) seen[at] = together;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(seen[0].ok());
  CHECK(seen[2].ok());
  CHECK(seen[3].ok());
  CHECK(gathered[0] == 6);
  CHECK(seen[1].info().ranks == std::vector<int>{3});
}

namespace {

// A transport that records the destinations of messages, and completes all sends except those to `stuck`.
class Outbox final : public Transport {
 public:
  explicit Outbox(int stuck) : stuck_(stuck) {}
  void send(int peer, const MessageTag&, const Descriptor&, const std::byte*, uint64_t,
            Message* message) override {
    sent.push_back(peer);
    message->done = peer != stuck_;
  }
  void receive(int, const MessageTag&, std::byte*, uint64_t, Message*) override {}
  bool progress() override { return false; }
  void cancel(Message* message) override { message->done = true; }
  bool peek(int, uint32_t, uint64_t, Descriptor*) override { return false; }
  TransportCounters counters() const override { return {}; }
  const char* name() const override { return "outbox"; }
  std::vector<int> sent;

 private:
  const int stuck_;
};

// Each reading advances the time.
class LookingClock final : public Clock {
 public:
  uint64_t now_ns() override { return now_ += 100'000'000; }
  void relax(uint32_t) override {}
  void sleep(const std::atomic<uint32_t>&, uint32_t, uint64_t) override {}
  void wake_all(const std::atomic<uint32_t>&) override {}

 private:
  uint64_t now_ = 0;
};

}  // namespace

TEST_CASE("a rank without wait notes does not keep other ranks from receiving them") {
  Outbox transport(1);
  LookingClock clock;
  ProgressReports progress_reports(transport, clock, 0, 4);
  for (uint64_t slot = 0; slot < 2; slot++) {
    ProgressReports::Wait wait;
    wait.slot = slot;
    transport.sent.clear();
    progress_reports.begins();
    for (int poll = 0; poll < 1000; poll++) progress_reports.waits(&wait);
    CHECK(transport.sent == (slot == 0 ? std::vector<int>{1, 2, 3} : std::vector<int>{2, 3}));
  }
}

namespace {

// A lane that ends each stage at once, as the test says. A device may still be at work then.
class Stage final : public CollectiveLane {
 public:
  struct Seen {
    Status ends;
    bool works = false;
    bool abandoned = false;
    std::vector<bool> on_device;  // of each stage that was begun
  };
  explicit Stage(Seen& seen) : seen_(seen) {}
  void start(const CollectiveArgs& args, uint64_t) override {
    seen_.on_device.push_back(args.device != nullptr);
  }
  Poll poll() override { return Poll::kFinished; }
  Status result() const override { return seen_.ends; }
  void abandon() override { seen_.abandoned = true; }
  std::vector<int> writers() const override { return seen_.works ? std::vector<int>{0} : std::vector<int>(); }
  std::vector<int> missing() const override { return {}; }
  const char* algorithm() const override { return "none"; }

 private:
  Seen& seen_;
};

}  // namespace

TEST_CASE("an operation that fails between hosts ends once the devices inside have finished") {
  const Grouping grouping = grouping_of(0, {0, 1});
  SystemClock clock;
  Outbox transport(-1);
  ProgressReports progress_reports(transport, clock, 0, 2);
  Stage::Seen inside, across;
  across.ends = Status::error(Code::kPeerFailed, "the network is down");
  HierarchicalLane lane(grouping, host_ops(), std::make_shared<HeapArena>(HostAllocator()), progress_reports,
                        LaneKey(), std::make_unique<Stage>(inside), std::make_unique<Stage>(across));
  for (const bool device : {true, false}) {
    inside.works = true;
    inside.abandoned = false;
    std::byte buffer[100] = {};
    DeviceCall call;
    CollectiveArgs args;
    args.coll = Coll::kBroadcast;
    args.count = sizeof buffer;
    args.dst = buffer;
    args.device = device ? &call : nullptr;
    lane.start(args, 0);
    Poll poll = Poll::kAdvanced;
    while (poll == Poll::kAdvanced) poll = lane.poll();
    CHECK(inside.abandoned);
    CHECK(lane.result().code() == Code::kPeerFailed);
    CHECK(inside.on_device.back() == device);
    CHECK_FALSE(across.on_device.back());
    CHECK(poll == (device ? Poll::kWaiting : Poll::kFinished));
    inside.works = false;
    CHECK(lane.poll() == Poll::kFinished);
  }
}

TEST_CASE("WEFT_HOSTS has a number for every rank") {
  int label = 0;
  CHECK(parse_hosts("", 1, 2, &label).ok());
  CHECK(label == -1);
  CHECK(parse_hosts("4,0,4", 2, 3, &label).ok());
  CHECK(label == 4);
  for (const char* wrong : {"1", "1,2,3", "1,", ",1", "a,b", "1,-2", "1,99999", "1 ,2"}) {
    INFO(wrong);
    CHECK(parse_hosts(wrong, 0, 2, &label).code() == Code::kArg);
  }
}

}  // namespace unit_hierarchy
