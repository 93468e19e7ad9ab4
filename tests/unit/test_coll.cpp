// lib/coll: schedules, the table of algorithms, and collectives over a transport.
#include <functional>
#include <set>
#include <string>

#include "base/text.h"
#include "coll/lane.h"
#include "coll/select.h"
#include "kernels/host_ops.h"
#include "support/catch.h"

namespace unit_coll {

using namespace weft;
using namespace weft::coll;

namespace {

Shape shape_of(int rank, int size, uint64_t count, uint64_t element) {
  Shape shape;
  shape.rank = rank;
  shape.size = size;
  shape.count = count;
  shape.element = element;
  return shape;
}

// One rank's blocks of different sizes, packed. In all_to_all each pair has a size of its own, otherwise each
// rank.
class PackedBlocks {
 public:
  PackedBlocks(Coll coll, int rank, int size, uint64_t count) {
    for (int r = 0; r < size; r++) {
      const bool pairs = coll == Coll::kAllToAllV;
      from_.add(length(pairs ? rank : r, r, count));
      to_.add(length(r, pairs ? rank : r, count));
    }
    blocks_ = {from_.list(), to_.list()};
  }
  const Blocks* get() const { return &blocks_; }

 private:
  struct List {
    std::vector<uint64_t> counts, offsets;
    void add(uint64_t count) {
      offsets.push_back(counts.empty() ? 0 : offsets.back() + counts.back());
      counts.push_back(count);
    }
    BlockList list() const { return {counts.data(), offsets.data()}; }
  };
  static uint64_t length(int from, int to, uint64_t count) {
    return (count + static_cast<uint64_t>(3 * from + to)) % (count + 1);
  }

  List from_, to_;
  Blocks blocks_;
};

// A byte range of an operation's memory. In place: source and target may be the same.
struct Range {
  Ref at;
  uint64_t bytes = 0;
  bool touches(const Range& other) const {
    const bool scratch = at.space == Space::kScratch;
    if (scratch != (other.at.space == Space::kScratch)) return false;
    return at.offset < other.at.offset + other.bytes && other.at.offset < at.offset + bytes;
  }
};

bool is_collective(const Algorithm& algorithm) {
  return algorithm.coll != Coll::kSend && algorithm.coll != Coll::kRecv;
}

// Calls look with the schedule of every algorithm of all_reduce and reduce on each of three and of six ranks,
// and its description.
void each_reduction(uint64_t count, const std::function<void(const std::string&, const Schedule&)>& look) {
  for (const AlgorithmRow row : algorithms()) {
    const Algorithm& algorithm = row();
    if (algorithm.coll != Coll::kAllReduce && algorithm.coll != Coll::kReduce) continue;
    for (const int size : {3, 6}) {
      for (int rank = 0; rank < size; rank++) {
        Schedule schedule;
        algorithm.build(shape_of(rank, size, count, 4), schedule);
        look(cat(algorithm.name, " rank ", rank, " of ", size), schedule);
      }
    }
  }
}

// Checks that each message that a rank sends is received by its peer in the same round, step and size.
void check_symmetry(const Algorithm& algorithm, int size, uint64_t count) {
  std::vector<Schedule> schedules(static_cast<size_t>(size));
  for (int r = 0; r < size; r++) {
    Schedule& schedule = schedules[static_cast<size_t>(r)];
    const PackedBlocks blocks(algorithm.coll, r, size, count);
    Shape shape = shape_of(r, size, count, 4);
    shape.blocks = blocks.get();
    algorithm.build(shape, schedule);
    schedule.add_handshake(r, size, algorithm.synchronises);
  }
  for (int r = 0; r < size; r++) {
    const Schedule& mine = schedules[static_cast<size_t>(r)];
    for (size_t round = 0; round < mine.rounds().size(); round++) {
      for (const Transfer& t : mine.transfers(round)) {
        const Schedule& theirs = schedules[static_cast<size_t>(t.peer)];
        int matches = 0;
        for (size_t k = 0; k < theirs.rounds().size(); k++) {
          for (const Transfer& u : theirs.transfers(k)) {
            const bool match = u.peer == r && u.is_send != t.is_send && u.step == t.step;
            matches += match && u.bytes == t.bytes ? 1 : 0;
          }
        }
        INFO(algorithm.name << " size " << size << " count " << count << " rank " << r << " step " << t.step);
        REQUIRE(matches == 1);
      }
    }
  }
}

}  // namespace

TEST_CASE("slices cover a vector once, in order, and begin on cache lines") {
  for (const uint64_t count : {0u, 1u, 15u, 16u, 17u, 1000u, 4096u}) {
    for (const int parts : {1, 2, 3, 5, 8}) {
      uint64_t end = 0;
      for (int i = 0; i < parts; i++) {
        const Slice slice = slice_of(shape_of(0, parts, count, 4), i, parts);
        CHECK(slice.begin == end);
        CHECK((slice.count == 0 || slice.begin % 16 == 0));
        end = slice.begin + slice.count;
      }
      CHECK(end == count);
    }
  }
}

TEST_CASE("every message of every algorithm has one receiver that expects it") {
  for (const AlgorithmRow row : algorithms()) {
    const Algorithm* const algorithm = &row();
    if (!is_collective(*algorithm)) continue;
    for (const int size : {1, 2, 3, 4, 5, 8}) {
      for (const uint64_t count : {0u, 1u, 17u, 4096u, 300'000u}) check_symmetry(*algorithm, size, count);
    }
  }
}

TEST_CASE("local work concurrent with messages neither reads what they receive nor writes what they send") {
  int found = 0;
  each_reduction(300'000, [&](const std::string& whose, const Schedule& schedule) {
    for (size_t round = 0; round < schedule.rounds().size(); round++) {
      for (size_t i = 0; i < schedule.meanwhile(round); i++, found++) {
        const Work& work = schedule.works(round)[i];
        const Range to{work.to, work.count * 4};
        for (const Transfer& t : schedule.transfers(round)) {
          const Range moved{t.memory, t.bytes};
          INFO(whose << " round " << round);
          CHECK(!moved.touches(to));
          for (const Ref& input : schedule.inputs(work)) {
            CHECK((t.is_send || !moved.touches({input, work.count * 4})));
          }
        }
      }
    }
  });
  CHECK(found > 0);
}

TEST_CASE("a round neither writes what the next round's early messages send nor uses what they receive") {
  int found = 0;
  each_reduction(900'000, [&](const std::string& whose, const Schedule& schedule) {
    for (size_t round = 0; round + 1 < schedule.rounds().size(); round++) {
      for (const Transfer& ahead : schedule.transfers(round + 1)) {
        if (ahead.when != When::kAhead) continue;
        found++;
        const Range moved{ahead.memory, ahead.bytes};
        INFO(whose << " round " << round);
        for (const Transfer& t : schedule.transfers(round)) {
          CHECK(((t.is_send && ahead.is_send) || !moved.touches({t.memory, t.bytes})));
        }
        for (const Work& work : schedule.works(round)) {
          CHECK(!moved.touches({work.to, work.count * 4}));
          for (const Ref& input : schedule.inputs(work)) {
            CHECK((ahead.is_send || !moved.touches({input, work.count * 4})));
          }
        }
      }
    }
  });
  CHECK(found > 0);
}

namespace {

// A transport that completes operations on demand, and records what is posted, as step and direction.
class Desk final : public Transport {
 public:
  void send(int, const MessageTag& tag, const Descriptor&, const std::byte*, uint64_t,
            Message* message) override {
    sends.insert(tag.step);
    posted_.push_back({tag.step, message});
  }
  void receive(int, const MessageTag& tag, std::byte*, uint64_t bytes, Message* message) override {
    receives.insert(tag.step);
    message->received_bytes = bytes;
    posted_.push_back({tag.step, message});
  }
  bool progress() override { return false; }
  void cancel(Message* message) override { cancelled += std::exchange(message->done, true) ? 0 : 1; }
  bool peek(int, uint32_t, uint64_t, Descriptor*) override { return false; }
  TransportCounters counters() const override { return {}; }
  const char* name() const override { return "desk"; }

  void complete(uint32_t step, const Descriptor& descriptor) {
    for (const auto& [of, message] : posted_) {
      if (of != step) continue;
      message->peer_descriptor = descriptor;
      message->done = true;
    }
  }
  std::set<uint32_t> sends, receives;
  int cancelled = 0;

 private:
  std::vector<std::pair<uint32_t, Message*>> posted_;
};

}  // namespace

TEST_CASE("the next chunk is posted before this one has arrived, and cancelled with it") {
  Desk desk;
  const LaneContext context{desk, host_ops(), 0, 2, {}};
  TransportLane lane(context, LaneKey());
  std::vector<float> data(500'000);
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = Dtype::kF32;
  args.count = data.size();
  args.src = args.dst = reinterpret_cast<std::byte*>(data.data());
  lane.start(args, 0);
  // Even steps are a chunk's exchange, odd steps its result.
  CHECK(desk.sends == std::set<uint32_t>{0, 2});
  CHECK(desk.receives == std::set<uint32_t>{0, 2});
  lane.poll();
  CHECK(desk.sends == std::set<uint32_t>{0, 2});
  desk.complete(0, Descriptor::of(args));
  while (desk.receives.size() == 2) REQUIRE(lane.poll() != Poll::kFinished);
  CHECK(desk.sends == std::set<uint32_t>{0, 2, 4});
  CHECK(desk.receives == std::set<uint32_t>{0, 1, 2, 4});
  CHECK(lane.missing() == std::vector<int>{1});
  lane.abandon();
  CHECK(desk.cancelled == 5);  // chunks 1 and 2 in both directions, and the result of chunk 0
}

TEST_CASE(
    "a long reduction takes a MiB of scratch at most between two ranks, 8 MiB among more, and a small "
    "schedule") {
  for (const Coll coll : {Coll::kAllReduce, Coll::kReduce, Coll::kReduceScatter}) {
    for (const int size : {2, 4, 8}) {
      for (const uint64_t mebibytes : {16u, 64u, 256u}) {
        const uint64_t bytes = mebibytes << 20;
        const uint64_t parts = coll == Coll::kReduceScatter ? static_cast<uint64_t>(size) : 1;
        const Shape shape = shape_of(1, size, bytes / 4 / parts, 4);
        const Algorithm& algorithm = select(coll, shape, {});
        Schedule schedule;
        algorithm.build(shape, schedule);
        INFO(algorithm.name << " size " << size << " MiB " << mebibytes);
        CHECK(schedule.scratch_bytes() <= uint64_t{size == 2 ? 1u : 8u} << 20);
        CHECK(schedule.memory_bytes() <= bytes / 128);
      }
    }
  }
}

TEST_CASE("with a handshake every rank receives from every other in the first round") {
  for (const AlgorithmRow row : algorithms()) {
    const Algorithm* const algorithm = &row();
    if (!is_collective(*algorithm)) continue;
    Schedule schedule;
    const PackedBlocks blocks(algorithm->coll, 1, 5, 1000);
    Shape shape = shape_of(1, 5, 1000, 4);
    shape.blocks = blocks.get();
    algorithm->build(shape, schedule);
    schedule.add_handshake(1, 5, algorithm->synchronises);
    std::vector<int> heard(5);
    for (const Transfer& t : schedule.transfers(0)) {
      // The handshake of an algorithm that synchronises comes beside its other messages.
      const bool counts = !algorithm->synchronises || t.step == Schedule::kHandshakeStep;
      heard[static_cast<size_t>(t.peer)] += !t.is_send && counts ? 1 : 0;
    }
    CHECK(heard == std::vector<int>{1, 0, 1, 1, 1});
  }
}

TEST_CASE("the table chooses by size, and measured thresholds replace the table's") {
  Shape shape = shape_of(0, 4, 16, 4);
  const auto of_size = [&](uint64_t count) {
    shape.count = count;
    return std::string(select(Coll::kAllReduce, shape, {}).name);
  };
  CHECK(of_size(16) == "one_shot");
  CHECK(of_size(1 << 20) == "direct");
  shape.one_shot = 256 << 10;
  CHECK(of_size(64 << 10) == "one_shot");
  CHECK(of_size((64 << 10) + 1) == "direct");
  shape.one_shot = 0;
  CHECK(of_size(1) == "direct");
  shape = shape_of(1, 2, 0, 4);
  CHECK(of_size(64 << 10) == "one_shot");
  CHECK(of_size((64 << 10) + 1) == "direct");
}

TEST_CASE("algorithms are named for ranges of sizes") {
  Forced forced;
  REQUIRE(parse_forced("", &forced).ok());
  CHECK(forced.named(Coll::kAllReduce, 0) == nullptr);
  REQUIRE(parse_forced("all_reduce:4k-1M:ring,0-4k:doubling,2M-inf:tree;broadcast:flat;", &forced).ok());
  const auto ran = [&](Coll coll, uint64_t bytes) {
    Shape shape = shape_of(0, 4, bytes, 1);
    return std::string(select(coll, shape, forced).name);
  };
  CHECK(ran(Coll::kAllReduce, 0) == "doubling");
  CHECK(ran(Coll::kAllReduce, 4095) == "doubling");
  CHECK(ran(Coll::kAllReduce, 4096) == "ring");
  CHECK(ran(Coll::kAllReduce, (1 << 20) - 1) == "ring");
  CHECK(ran(Coll::kAllReduce, 1 << 20) == "direct");  // named by none
  CHECK(ran(Coll::kAllReduce, 2 << 20) == "tree");
  CHECK(ran(Coll::kAllReduce, UINT64_MAX) == "tree");
  CHECK(ran(Coll::kBroadcast, 1 << 20) == "flat");
  CHECK(ran(Coll::kReduce, 1 << 20) == "direct");
  CHECK((forced.covers(Coll::kBroadcast) && !forced.covers(Coll::kAllReduce)));
  CHECK((forced.measure && text(forced).empty()));
  REQUIRE(parse_forced("off;all_reduce:1M-2M:direct", &forced).ok());
  CHECK((!forced.measure && forced.covers(Coll::kAllReduce)));
}

TEST_CASE("a wrong range, collective or algorithm is an error that lists what is allowed") {
  const auto error = [](const char* text) {
    Forced forced;
    const Status status = parse_forced(text, &forced);
    CHECK(status.code() == Code::kArg);
    return status.text();
  };
  for (const char* wrong : {"all_reduce", "all_reduce:", "reduction:direct", ":", ";", "off=1", "on",
                            "all_reduce=ring", "all_reduce:0-4K", "all_reduce:direct broadcast"}) {
    INFO(wrong);
    CHECK(error(wrong).find("allowed are") != std::string::npos);
  }
  CHECK(error("all_reduce:circle").find("halving_doubling") != std::string::npos);
  CHECK(error("allreduce:ring").find("all_reduce, reduce, broadcast") != std::string::npos);
  for (const char* wrong :
       {"all_reduce:4K:ring", "all_reduce:4K-:ring", "all_reduce:-4K:ring", "all_reduce:4K-4K:ring",
        "all_reduce:8K-4K:ring", "all_reduce:inf-inf:ring", "all_reduce:0-9999999999G:ring",
        "all_reduce:ring:0-4K", "all_reduce:direct broadcast:flat"}) {
    INFO(wrong);
    CHECK(error(wrong).find("give LOW-HIGH") != std::string::npos);
  }
  CHECK(error("all_reduce:0-8K:ring,4K-inf:tree").find("ring and tree, for 4 KiB to 8 KiB") !=
        std::string::npos);
  CHECK(error("all_reduce:4K-inf:tree;all_reduce:ring").find("for 4 KiB to inf") != std::string::npos);
}

}  // namespace unit_coll
