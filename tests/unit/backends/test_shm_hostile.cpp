// backends/shm with peers that make other calls, publish invalid data, or die: always an error by name, never
// a crash, and no data.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>

#include "shm/lane.h"
#include "shm_rank.h"
#include "support/catch.h"
#include "support/sanitized.h"

namespace unit_shm_hostile {

using namespace weft;
using namespace weft::shm;
using namespace weft::test;

namespace {

CollectiveArgs sum(std::vector<int32_t>& data) {
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = Dtype::kI32;
  args.op = ReduceOp::kSum;
  args.count = data.size();
  args.src = args.dst = reinterpret_cast<std::byte*>(data.data());
  return args;
}

struct Difference {
  const char* text;  // in the error of both sides
  std::function<void(CollectiveArgs&)> change;
};

// Creates only the group, so that a rank can write anything into its own words.
std::shared_ptr<Group> make_group(SocketLinks& links) {
  static SystemClock clock;
  static Log log;
  BackendArgs args{links, clock, log, host_ops(), 4 << 20, Deadline::after(clock, 20'000, 0), &links};
  std::shared_ptr<Group> group;
  WEFT_EXPECT_OK(make_group(args, &group));
  Thresholds pulling = table_thresholds(links.size());
  pulling.pull = kPullMin;
  group->set_thresholds(pulling);
  return group;
}

Status drive(CollectiveLane& lane) {
  SystemClock clock;
  const Deadline deadline = Deadline::after(clock, 20'000, 0);
  for (uint32_t round = 0; lane.poll() != Poll::kFinished; round++) {
    if (deadline.expired(clock)) return Status::error(Code::kTimeout, "hangs");
    clock.relax(round);
  }
  return lane.result();
}

// Rank 0 calls all_reduce on `count` elements; rank 1 publishes a correct post that `lie` has changed.
Status against(int ranks_are_processes, uint64_t count,
               const std::function<void(Group& group, LaneBlock& mine, Post& post)>& lie,
               const InputSlices* slices = nullptr, uint64_t slot = 0) {
  Status seen;
  const LinkedBody body = [&](SocketLinks& links) {
    const std::shared_ptr<Group> group = make_group(links);
    std::vector<int32_t> data(count, 5);
    std::vector<Bytes> all;
    SystemClock clock;
    const Deadline deadline = Deadline::after(clock, 20'000, 0);
    if (links.rank() == 1) {
      LaneBlock& mine = group->at<LaneBlock>(1, group->layout().lane(0));
      Post& post = mine.posts[slot & 1];
      post.descriptor = Descriptor::of(sum(data));
      post.arrival.hash = post.descriptor.hash();
      post.arrival.claims = {};
      uint64_t sequence = slot + 1;
      lie(*group, mine, post);
      if (post.arrival.sequence.load() != 0) sequence = post.arrival.sequence.load();
      post.arrival.sequence.store(sequence, std::memory_order_release);
      WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
      return;
    }
    std::byte* memory = nullptr;
    WEFT_EXPECT_OK(group->arena()->allocate(count * 4, &memory));
    std::memcpy(memory, data.data(), count * 4);
    CollectiveArgs args = sum(data);
    args.src = args.dst = memory;
    args.slices = slices;
    GroupLane lane(group, 0);
    lane.start(args, slot);
    const Status status = drive(lane);
    WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
    WEFT_EXPECT(!status.ok());
    WEFT_EXPECT(std::memcmp(memory, data.data(), count * 4) == 0);
    WEFT_EXPECT(status.info().ranks == std::vector<int>{1});
    seen = status;
    if (ranks_are_processes) WEFT_EXPECT(status.code() == Code::kPeerFailed);
  };
  const std::string failed =
      failure_text(ranks_are_processes ? run_linked_processes(2, body) : run_linked_threads(2, body));
  return failed.empty() ? seen : Status::error(Code::kInternal, failed);
}

// The links of rank 0, which shares its memory with no rank; and those of rank 1, which gets a report from
// elsewhere that rank 0 is lost.
class BrokenLinks final : public Exchange, public FdChannel {
 public:
  explicit BrokenLinks(SocketLinks& links) : links_(links) {}
  int rank() const override { return links_.rank(); }
  int size() const override { return links_.size(); }
  Status all_gather(ByteView mine, std::vector<Bytes>* all, Deadline deadline) override {
    return links_.all_gather(mine, all, deadline);
  }
  bool same_host(int rank) const override { return links_.same_host(rank); }
  Status send_fd(int rank, int fd) override {
    return this->rank() == 0 ? Status() : links_.send_fd(rank, fd);
  }
  Status receive_fd(int rank, Fd* fd, Deadline deadline) override {
    return links_.receive_fd(rank, fd, deadline);
  }

 private:
  Status news() override {
    return Status::error(Code::kPeerFailed, "rank 0 was stopped", Evidence::kHeartbeat).with_ranks({0});
  }

  SocketLinks& links_;
};

}  // namespace

TEST_CASE("ranks that make different calls get an error with both calls before data moves") {
  const std::vector<Difference> differences = {
      {"all_reduce max i32", [](CollectiveArgs& a) { a.op = ReduceOp::kMax; }},
      {"all_reduce sum u32", [](CollectiveArgs& a) { a.dtype = Dtype::kU32; }},
      {"x 7", [](CollectiveArgs& a) { a.count = 7; }},
      {"broadcast", [](CollectiveArgs& a) { a.coll = Coll::kBroadcast; }},
      {"barrier", [](CollectiveArgs& a) { a = {}; }},
      {"reduce sum i32", [](CollectiveArgs& a) { a.coll = Coll::kReduce; }},
      {"of a reducer", [](CollectiveArgs& a) { a.tag = 0x99 * kTagSlot; }},
      {"of a reducer after 1 local step", [](CollectiveArgs& a) { a.tag = 0x99 * kTagSlot + 1; }},
      {"scaled by 0.5", [](CollectiveArgs& a) { a.postscale = 0.5; }},
  };
  for (const uint64_t count : {8, 5000, 1'000'000}) {
    for (const Difference& difference : differences) {
      CHECK(failure_text(run_linked_threads(3, [&](SocketLinks& links) {
              ShmRank rank(links);
              std::vector<int32_t> data(count, 3);
              CollectiveArgs args = sum(data);
              if (rank.rank() == 1) difference.change(args);
              const Status status = rank.call(args);
              WEFT_EXPECT(status.code() == Code::kMismatch);
              WEFT_EXPECT(status.info().evidence == Evidence::kDescriptor);
              WEFT_EXPECT(status.text().find(difference.text) != std::string::npos);
              WEFT_EXPECT(status.text().find(cat("all_reduce sum i32 x ", count)) != std::string::npos);
              WEFT_EXPECT(status.text().find("operation 0: rank ") == 0);
              WEFT_EXPECT(data == std::vector<int32_t>(count, 3));
            })) == "");
    }
  }
}

TEST_CASE("a root that differs is a mismatch") {
  CHECK(failure_text(run_linked_threads(2, [](SocketLinks& links) {
          ShmRank rank(links);
          std::vector<int32_t> data(100, rank.rank());
          CollectiveArgs args = sum(data);
          args.coll = Coll::kBroadcast;
          args.op = ReduceOp::kNone;
          args.peer = rank.rank();
          const Status status = rank.call(args);
          WEFT_EXPECT(status.code() == Code::kMismatch);
          WEFT_EXPECT(data[0] == rank.rank());
        })) == "");
}

TEST_CASE("an impossible sequence number is an error by name") {
  for (const uint64_t wild : {uint64_t{2}, uint64_t{12345}, UINT64_MAX - 1}) {
    const Status status =
        against(0, 4, [&](Group&, LaneBlock&, Post& post) { post.arrival.sequence = wild; });
    INFO(status.text());
    CHECK(status.code() == Code::kPeerFailed);
    CHECK(status.text().find("corrupt") != std::string::npos);
  }
  // At operation 6 the post has the number of operation 4, until the rank arrives: none of the past.
  for (const uint64_t past : {uint64_t{1}, uint64_t{4}, uint64_t{6}}) {
    const Status status =
        against(0, 4, [&](Group&, LaneBlock&, Post& post) { post.arrival.sequence = past; }, nullptr, 6);
    INFO(status.text());
    CHECK(status.code() == Code::kPeerFailed);
    CHECK(status.text().find("corrupt") != std::string::npos);
  }
}

TEST_CASE("a mismatch shows the calls that differ, whatever the calls before them were") {
  for (const int before : {1, 2, 3}) {
    CHECK(failure_text(run_linked_threads(2, [&](SocketLinks& links) {
            ShmRank rank(links);
            std::vector<int32_t> data(8, 1), longer(9, 1), shorter(7, 1);
            for (int i = 0; i < before; i++) WEFT_EXPECT_OK(rank.call(sum(data)));
            const Status status = rank.call(sum(rank.rank() == 0 ? longer : shorter));
            WEFT_EXPECT(status.code() == Code::kMismatch);
            WEFT_EXPECT(status.text().find("x 9") != std::string::npos);
            WEFT_EXPECT(status.text().find("x 7") != std::string::npos);
          })) == "");
  }
}

TEST_CASE("an invalid descriptor is a mismatch that can be printed") {
  const Status status = against(0, 4, [](Group&, LaneBlock&, Post& post) {
    std::memset(static_cast<void*>(&post.descriptor), 0xee, sizeof post.descriptor);
    post.arrival.hash = 42;
  });
  INFO(status.text());
  CHECK(status.code() == Code::kMismatch);
  CHECK(status.text().find("unknown collective") != std::string::npos);
}

TEST_CASE("a rank that gives up an operation counts as missing, also after it had arrived") {
  CHECK(failure_text(run_linked_threads(3, [](SocketLinks& links) {
          ShmRank rank(links);
          std::vector<int32_t> data(100'000, 1);
          SystemClock clock;
          std::vector<Bytes> all;
          const Deadline deadline = Deadline::after(clock, 20'000, 0);
          if (rank.rank() == 0) {
            rank.lane().start(sum(data), 0);
            WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
            rank.lane().abandon();
            WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
            return;
          }
          // Rank 2 never calls.
          if (rank.rank() == 1) {
            rank.lane().start(sum(data), 0);
            WEFT_EXPECT(rank.lane().poll() == Poll::kWaiting);
          }
          WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
          WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
          if (rank.rank() == 1) {
            WEFT_EXPECT(rank.lane().poll() == Poll::kWaiting);
            WEFT_EXPECT((rank.lane().missing() == std::vector<int>{0, 2}));
            rank.lane().abandon();
          }
        })) == "");
}

TEST_CASE("no rank writes into the arena of a rank that has given up an operation") {
  const auto errors = run_linked_threads(2, [](SocketLinks& links) {
    const std::shared_ptr<Group> group = make_group(links);
    SystemClock clock;
    const Deadline deadline = Deadline::after(clock, 20'000, 0);
    std::vector<Bytes> all;
    const uint64_t count = 1 << 20;
    std::byte* memory = nullptr;
    WEFT_EXPECT_OK(group->arena()->allocate(count * 4, &memory));
    auto* const values = reinterpret_cast<int32_t*>(memory);
    std::fill_n(values, count, 5);
    std::vector<int32_t> shape(count);
    CollectiveArgs args = sum(shape);
    args.src = args.dst = memory;
    GroupLane lane(group, 0);
    LaneBlock& theirs = group->at<LaneBlock>(1 - links.rank(), group->layout().lane(0));
    lane.start(args, 0);
    WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
    if (links.rank() == 0) {
      // Rank 1 is in the middle of a write, and then ends it.
      theirs.writing.value = 1;
      lane.abandon();
      WEFT_EXPECT(lane.writers() == std::vector<int>{1});
      theirs.writing.value = 0;
      WEFT_EXPECT(lane.writers().empty());
      // As if rank 1 had seen the arrival before it was withdrawn.
      group->at<LaneBlock>(0, group->layout().lane(0)).posts[0].arrival.sequence = 1;
      WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
      WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
      WEFT_EXPECT(lane.writers().empty());  // rank 1 has found this arena sealed
      WEFT_EXPECT(std::all_of(values, values + count, [](int32_t v) { return v == 5; }));
      return;
    }
    WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
    for (int i = 0; i < 100; i++) WEFT_EXPECT(lane.poll() != Poll::kFinished);
    WEFT_EXPECT(lane.writers().empty());
    WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
    lane.abandon();
  });
  CHECK(failure_text(errors) == "");
}

TEST_CASE("gradients that a rank has taken back are not read in place") {
  const auto errors = run_linked_threads(2, [](SocketLinks& links) {
    const std::shared_ptr<Group> group = make_group(links);
    SystemClock clock;
    const Deadline deadline = Deadline::after(clock, 20'000, 0);
    std::vector<Bytes> all;
    const uint64_t count = 1 << 20, half = count / 2;  // the second half is rank 1's to reduce
    std::byte* memory = nullptr;
    WEFT_EXPECT_OK(group->arena()->allocate(count * 4, &memory));
    auto* const values = reinterpret_cast<int32_t*>(memory);
    std::fill_n(values, count, 5);
    std::vector<int32_t> shape(count), gradient(half, 7);
    std::mutex mutex;
    std::atomic<bool> gone{true};
    const InputSlices slices{
        {{half, half, reinterpret_cast<std::byte*>(gradient.data())}}, false, &mutex, &gone};
    CollectiveArgs args = sum(shape);
    args.src = args.dst = memory;
    if (links.rank() == 1) args.slices = &slices;
    GroupLane lane(group, 0);
    lane.start(args, 0);
    for (int i = 0; i < 1000; i++) WEFT_EXPECT(lane.poll() != Poll::kFinished);
    WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
    for (int i = 0; i < 1000; i++) WEFT_EXPECT(lane.poll() != Poll::kFinished);
    WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
    WEFT_EXPECT(std::all_of(values + half, values + count, [](int32_t v) { return v == 5; }));
    WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
    gone = false;
    WEFT_EXPECT_OK(drive(lane));
    WEFT_EXPECT(std::all_of(values, values + half, [](int32_t v) { return v == 10; }));
    WEFT_EXPECT(std::all_of(values + half, values + count, [](int32_t v) { return v == 12; }));
    WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
  });
  CHECK(failure_text(errors) == "");
}

TEST_CASE("claims outside the segment are refused") {
  const uint64_t count = 100'000;
  struct Claim {
    uint64_t src, dst;
  };
  const shm::Layout layout(2, 4 << 20);
  const uint64_t good = layout.arena;
  for (const Claim& claim :
       {Claim{0, good}, Claim{good, 0}, Claim{good, layout.total}, Claim{layout.total - 4, good},
        Claim{UINT64_MAX - 3, good}, Claim{good, UINT64_MAX - count * 4 + 8}, Claim{good + 2, good},
        Claim{good, layout.total - count * 4 + 4}}) {
    const Status status = against(0, count, [&](Group&, LaneBlock&, Post& post) {
      post.arrival.claims.flags = kMapped;
      post.arrival.claims.src_offset = claim.src;
      post.arrival.claims.dst_offset = claim.dst;
    });
    INFO(status.text() << " for " << claim.src << " " << claim.dst);
    CHECK(status.code() == Code::kPeerFailed);
    CHECK(status.text().find("outside its segment") != std::string::npos);
  }
}

TEST_CASE("a reducer's bucket that is claimed to be in no segment is an error by name") {
  std::mutex mutex;
  const std::atomic<bool> gone{false};
  std::vector<std::byte> gradient(400'000);
  const InputSlices slices{{{0, 50'000, gradient.data()}}, false, &mutex, &gone};
  const auto claims_none = [](Group&, LaneBlock&, Post&) {};
  const Status status = against(0, 100'000, claims_none, &slices);
  INFO(status.text());
  CHECK(status.code() == Code::kPeerFailed);
  CHECK(status.info().evidence == Evidence::kDescriptor);
  CHECK(status.text().find("rank 1 published a bucket outside its segment") == 0);
}

TEST_CASE("an address that cannot be pulled is an error by name") {
  if (kThreadSanitizer) WEFT_SKIP("the thread sanitizer does not follow forks");
  const Status status = against(1, 900'000, [](Group& group, LaneBlock&, Post& post) {
    WEFT_EXPECT(group.thresholds().pull != kNever);
    post.arrival.claims.flags = kPulled;
    post.arrival.claims.src_address = 64;
    post.arrival.claims.dst_address = UINT64_MAX - 100;
  });
  INFO(status.text());
  CHECK((status.ok() || status.text().find("hangs") == std::string::npos));
  CHECK(status.code() != Code::kInternal);
}

TEST_CASE("ranks whose peer is killed in the middle name it and end the operation") {
  if (kThreadSanitizer) WEFT_SKIP("the thread sanitizer does not follow forks");
  for (const uint64_t count : {4, 20'000, 2'000'000}) {
    const std::vector<std::string> results = run_linked_processes(3, [&](SocketLinks& links) {
      ShmRank rank(links);
      std::vector<int32_t> data(count, 1);
      for (int i = 0;; i++) {
        if (rank.rank() == 1 && i == 5) ::kill(::getpid(), SIGKILL);
        const Status status = rank.call(sum(data), i < 5 ? 20'000 : 100);
        if (status.ok()) continue;
        WEFT_EXPECT(status.code() == Code::kTimeout || status.code() == Code::kPeerFailed);
        // The other survivor may have given up first.
        const std::vector<int>& ranks = status.info().ranks;
        WEFT_EXPECT(std::count(ranks.begin(), ranks.end(), 1) == 1);
        rank.lane().abandon();
        return;
      }
    });
    CHECK(results[0] == "");
    CHECK(results[1] == "died");
    CHECK(results[2] == "");
  }
}

TEST_CASE("a rank that is lost before it shares its memory ends the setup before the deadline") {
  const LinkedBody body = [](SocketLinks& links) {
    SystemClock clock;
    Log log;
    BrokenLinks broken(links);
    BackendArgs args{broken, clock, log, host_ops(), 4 << 20, Deadline::after(clock, 3'000, 0), &broken};
    std::shared_ptr<Group> group;
    const Status status = make_group(args, &group);
    WEFT_EXPECT(!status.ok());
    if (links.rank() == 1) {
      WEFT_EXPECT(status.code() == Code::kPeerFailed);
      WEFT_EXPECT(status.info().evidence == Evidence::kHeartbeat);
      WEFT_EXPECT(status.info().ranks == std::vector<int>{0});
    }
  };
  for (const std::string& failure : run_linked_processes(2, body)) CHECK(failure.empty());
}

}  // namespace unit_shm_hostile
