// Every collective of the shm backend, over every data path, compared with the expected result. The
// conformance suite covers all dtypes and ops; here the sizes are chosen by path.
#include <unistd.h>

#include "shm_rank.h"
#include "support/catch.h"
#include "support/sanitized.h"

namespace unit_shm_collectives {

using namespace weft;
using namespace weft::test;

namespace {

enum class Memory { kPrivate, kArena, kMixed };

struct Case {
  Coll coll;
  uint64_t count;
  Memory memory;
  bool in_place;
  int root;
};

std::string text(const Case& c) {
  return cat(name(c.coll), " x ", c.count, " memory ", static_cast<int>(c.memory),
             c.in_place ? " in place" : "", " root ", c.root);
}

// The input of every rank and their sum. Computed once, because with a sanitizer the loops take longest.
class Numbers {
 public:
  Numbers(int ranks, uint64_t longest) : sum_(longest) {
    for (int r = 0; r < ranks; r++) {
      std::vector<int32_t>& of_rank = of_rank_.emplace_back(longest);
      for (uint64_t i = 0; i < longest; i++) {
        const uint32_t number = static_cast<uint32_t>(r + 1) * 1000003u + static_cast<uint32_t>(i) * 7919u;
        of_rank[i] = static_cast<int32_t>(number);
        sum_[i] = static_cast<int32_t>(static_cast<uint32_t>(sum_[i]) + number);
      }
    }
  }
  const int32_t* of(int rank) const { return of_rank_[static_cast<size_t>(rank)].data(); }
  // The expected block of a rank's result; count elements.
  const int32_t* expected(const Case& c, int rank, int block) const {
    const uint64_t mine = static_cast<uint64_t>(rank) * c.count;
    switch (c.coll) {
      case Coll::kAllReduce:
      case Coll::kReduce:
        return sum_.data();
      case Coll::kReduceScatter:
        return sum_.data() + mine;
      case Coll::kBroadcast:
        return of(c.root);
      case Coll::kScatter:
        return of(c.root) + mine;
      case Coll::kAllToAll:
        return of(block) + mine;
      default:  // kAllGather, kGather
        return of(block);
    }
  }

 private:
  std::vector<std::vector<int32_t>> of_rank_;
  std::vector<int32_t> sum_;
};

bool equal(const int32_t* a, const int32_t* b, uint64_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof *a) == 0;
}

// Buffers of one rank for one case: private memory or the arena.
class Buffers {
 public:
  explicit Buffers(ShmRank& rank) : rank_(rank) {}
  ~Buffers() {
    for (std::byte* memory : arena_) (void)rank_.collectives().arena()->free(memory);
  }
  int32_t* get(uint64_t count, bool arena) {
    if (count == 0) count = 1;
    if (!arena) return private_.emplace_back(count, -1).data();
    std::byte* const memory = arena_.emplace_back(rank_.allocate(count * 4));
    std::memset(memory, 0xff, count * 4);
    return reinterpret_cast<int32_t*>(memory);
  }

 private:
  ShmRank& rank_;
  std::vector<std::vector<int32_t>> private_;
  std::vector<std::byte*> arena_;
};

bool rooted_elsewhere(const Case& c, int rank) {
  const bool gathers = c.coll == Coll::kReduce || c.coll == Coll::kGather;
  return gathers && rank != c.root;
}

void run_case(ShmRank& rank, const Numbers& numbers, const Case& c) {
  const auto n = static_cast<uint64_t>(rank.size());
  const auto me = static_cast<uint64_t>(rank.rank());
  const bool root = rank.rank() == c.root;
  const bool many_in =
      c.coll == Coll::kReduceScatter || c.coll == Coll::kScatter || c.coll == Coll::kAllToAll;
  const bool many_out = c.coll == Coll::kAllGather || c.coll == Coll::kGather || c.coll == Coll::kAllToAll;
  if (c.coll == Coll::kBarrier) {
    CollectiveArgs barrier;
    WEFT_EXPECT_OK(rank.call(barrier));
    return;
  }
  const uint64_t in_count = c.count * (many_in ? n : 1);
  const uint64_t out_count = c.count * (many_out ? n : 1);
  const bool arena = c.memory == Memory::kArena || (c.memory == Memory::kMixed && rank.rank() % 2 == 0);
  Buffers buffers(rank);
  int32_t* src = nullptr;
  int32_t* dst = nullptr;
  const bool has_src = (c.coll != Coll::kBroadcast && c.coll != Coll::kScatter) || root;
  const bool has_dst = !rooted_elsewhere(c, rank.rank());
  if (c.coll == Coll::kBroadcast) {
    dst = src = buffers.get(in_count, arena);
  } else if (c.in_place && has_src && has_dst && c.coll != Coll::kAllToAll) {
    int32_t* const all = buffers.get(std::max(in_count, out_count), arena);
    src = many_out ? all + me * c.count : all;
    dst = many_in ? all + me * c.count : all;
  } else {
    src = has_src ? buffers.get(in_count, arena) : nullptr;
    dst = has_dst ? buffers.get(out_count, arena) : nullptr;
  }
  if (has_src) std::copy_n(numbers.of(rank.rank()), in_count, src);
  CollectiveArgs args;
  args.coll = c.coll;
  args.dtype = Dtype::kI32;
  args.op = is_reduction(c.coll) ? ReduceOp::kSum : ReduceOp::kNone;
  args.peer = c.root;
  args.count = c.count;
  args.src = reinterpret_cast<std::byte*>(has_src ? src : nullptr);
  args.dst = reinterpret_cast<std::byte*>(dst);
  const Status status = rank.call(args);
  if (!status.ok()) throw std::runtime_error(cat(text(c), ": ", status.text()));
  for (int block = 0; has_dst && block < (many_out ? rank.size() : 1); block++) {
    const int32_t* const result = dst + static_cast<uint64_t>(block) * c.count;
    const int32_t* const expected = numbers.expected(c, rank.rank(), block);
    if (equal(result, expected, c.count)) continue;
    const auto at = std::mismatch(result, result + c.count, expected);
    throw std::runtime_error(cat(text(c), " (", rank.lane().algorithm(), "): element ", at.first - result,
                                 " of block ", block, " is ", *at.first, ", not ", *at.second));
  }
  // A separate source is unchanged, and so are the bytes of an in-place one that are not the result.
  const bool whole = !c.in_place || !has_dst || many_in;
  if (!has_src || !whole) return;
  const int32_t* const given = numbers.of(rank.rank());
  const bool overwritten = c.in_place && has_dst && many_in && c.coll != Coll::kAllToAll;
  const uint64_t first = overwritten ? me * c.count : in_count;
  const uint64_t rest = overwritten ? first + c.count : in_count;
  if (!equal(src, given, first) || !equal(src + rest, given + rest, in_count - rest))
    throw std::runtime_error(cat(text(c), " (", rank.lane().algorithm(), "): the source was changed"));
}

void every_collective(SocketLinks& links, const Numbers& numbers, bool pull) {
  ShmRank rank(links, 64 << 20, pull ? "off,pull=1M" : "off");
  // By path: inline, halves, the ring with odd ends, pulled and mapped with several rounds.
  const std::vector<uint64_t> counts = {0, 1, 3, 12, 13, 1000, 4099, 40'000, 150'001, 700'003};
  for (const Coll coll :
       {Coll::kAllReduce, Coll::kReduce, Coll::kBroadcast, Coll::kAllGather, Coll::kReduceScatter,
        Coll::kGather, Coll::kScatter, Coll::kAllToAll, Coll::kBarrier}) {
    for (const uint64_t count : counts) {
      const bool blocks = coll != Coll::kAllReduce && coll != Coll::kReduce && coll != Coll::kBroadcast;
      if (blocks && count > 400'000 / static_cast<uint64_t>(rank.size())) continue;
      for (const Memory memory : {Memory::kPrivate, Memory::kArena, Memory::kMixed}) {
        for (const bool in_place : {false, true}) {
          run_case(rank, numbers, {coll, count, memory, in_place, static_cast<int>(count) % rank.size()});
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("every shm collective delivers its result, ranks as threads") {
  for (const bool pull : {false, true}) {
    for (const int ranks : {1, 2, 3, 4, 7}) {
      if (!pull && ranks > 3) continue;
      INFO(ranks << " pull " << pull);
      const Numbers numbers(ranks, 700'003);
      const LinkedBody body = [&](SocketLinks& links) { every_collective(links, numbers, pull); };
      CHECK(failure_text(run_linked_threads(ranks, body)) == "");
    }
  }
}

TEST_CASE("every shm collective delivers its result, ranks as processes") {
  if (kThreadSanitizer) WEFT_SKIP("the thread sanitizer sees no other process");
  for (const bool pull : {false, true}) {
    for (const int ranks : {2, 3, 5}) {
      INFO(ranks << " pull " << pull);
      const Numbers numbers(ranks, 700'003);
      CHECK(failure_text(run_linked_processes(
                ranks, [&](SocketLinks& links) { every_collective(links, numbers, pull); })) == "");
    }
  }
}

// All-reduces of different values each time. Short and two-shot ones end without a barrier, so a rank that is
// ahead fills the staging that others have just used. Ranks wait now and then, each at other points.
void one_after_the_other(SocketLinks& links) {
  ShmRank rank(links, 8 << 20, "off,one-shot=4K,pull=8M");
  const uint64_t counts[] = {1'000, 30'000, 1'001, 170'000, 25'000, 400'003, 2'000, 65'536, 64};
  const auto ranks = static_cast<int32_t>(links.size());
  for (int32_t number = 0; number < (kSlow ? 90 : 600); number++) {
    const uint64_t count = counts[static_cast<size_t>(number) % std::size(counts)];
    const auto value = [&](int32_t of, uint64_t i) {
      return number * 1'000 + of * 7 + static_cast<int32_t>(i % 97);
    };
    std::vector<int32_t> data(count);
    for (uint64_t i = 0; i < count; i++) data[i] = value(links.rank(), i);
    CollectiveArgs args;
    args.coll = Coll::kAllReduce;
    args.dtype = Dtype::kI32;
    args.op = ReduceOp::kSum;
    args.count = count;
    args.src = args.dst = reinterpret_cast<std::byte*>(data.data());
    if ((number * 5 + links.rank() * 3) % 11 == 0) ::usleep(100);
    WEFT_EXPECT_OK(rank.call(args));
    for (uint64_t i = 0; i < count; i++) {
      const int32_t sum = ranks * value(0, i) + 7 * ranks * (ranks - 1) / 2;
      if (data[i] == sum) continue;
      throw std::runtime_error(cat("operation ", number, " (", rank.lane().algorithm(), "): element ", i,
                                   " is ", data[i], ", not ", sum));
    }
  }
}

TEST_CASE("shm all-reduces follow one another through the same staging") {
  for (const int ranks : {2, 3}) {
    INFO(ranks);
    CHECK(failure_text(run_linked_threads(ranks, one_after_the_other)) == "");
    if (!kThreadSanitizer) CHECK(failure_text(run_linked_processes(ranks, one_after_the_other)) == "");
  }
}

// A lane after 2^39 operations that were all inline: if its counters stood still, they are half their range
// behind. In the next operation, which uses staging, rank 0 runs ahead of rank 1.
void a_lane_of_great_age(SocketLinks& links) {
  constexpr uint64_t kAge = (uint64_t{1} << 39) - 2;
  constexpr uint64_t kCount = 128 << 10;
  ShmRank rank(links, 16 << 20);
  const auto meet = [&] {
    SystemClock clock;
    std::vector<Bytes> all;
    WEFT_EXPECT_OK(links.all_gather({}, &all, Deadline::after(clock, 20'000, 0)));
  };
  auto& block = rank.group().at<shm::LaneBlock>(rank.rank(), rank.group().layout().lane(0));
  block.posts[kAge & 1].arrival.sequence = kAge - 1;  // of slot kAge - 2
  block.posts[(kAge + 1) & 1].arrival.sequence = kAge;
  meet();
  CollectiveLane& lane = rank.lane();
  uint64_t slot = kAge;
  for (int i = 0; i < 3; i++) {
    lane.start({}, slot++);  // a barrier
    WEFT_EXPECT_OK(rank.finish(lane));
  }
  std::vector<int32_t> mine(kCount, rank.rank() + 1);
  std::vector<int32_t> everybodys(2 * kCount, -1);
  CollectiveArgs args;
  args.coll = Coll::kAllGather;
  args.dtype = Dtype::kI32;
  args.count = kCount;
  args.src = reinterpret_cast<std::byte*>(mine.data());
  args.dst = reinterpret_cast<std::byte*>(everybodys.data());
  lane.start(args, slot++);
  meet();
  for (int i = 0; rank.rank() == 0 && i < 1000; i++) WEFT_EXPECT(lane.poll() != Poll::kFinished);
  meet();
  WEFT_EXPECT_OK(rank.finish(lane));
  for (uint64_t i = 0; i < 2 * kCount; i++) {
    WEFT_EXPECT(everybodys[i] == static_cast<int32_t>(i / kCount) + 1);
  }
}

TEST_CASE("a lane after 2^39 inline operations still waits for its peers") {
  CHECK(failure_text(run_linked_threads(2, a_lane_of_great_age)) == "");
}

// More ranks than the test machines have cores: each path once.
void many_ranks(SocketLinks& links) {
  const Numbers numbers(links.size(), 160'000);
  ShmRank rank(links, 16 << 20);
  for (const Coll coll :
       {Coll::kAllReduce, Coll::kReduce, Coll::kBroadcast, Coll::kAllGather, Coll::kReduceScatter,
        Coll::kGather, Coll::kScatter, Coll::kAllToAll, Coll::kBarrier}) {
    const bool blocks = coll != Coll::kAllReduce && coll != Coll::kReduce && coll != Coll::kBroadcast;
    for (const uint64_t count : {uint64_t{1000}, blocks ? uint64_t{5000} : uint64_t{100'000}}) {
      for (const Memory memory : {Memory::kPrivate, Memory::kArena}) {
        run_case(rank, numbers, {coll, count, memory, false, static_cast<int>(count) % rank.size()});
      }
    }
  }
}

TEST_CASE("sixteen shm ranks as processes finish every collective") {
  if (kThreadSanitizer) WEFT_SKIP("the thread sanitizer sees no other process");
  CHECK(failure_text(run_linked_processes(16, many_ranks, 110)) == "");
}

TEST_CASE("thirty-two shm ranks as processes finish every collective", "[.][many]") {
  CHECK(failure_text(run_linked_processes(32, many_ranks, 110)) == "");
}

TEST_CASE("thirty-two shm ranks finish") {
  const Numbers numbers(32, 100'000);
  CHECK(failure_text(run_linked_threads(32, [&](SocketLinks& links) {
          ShmRank rank(links, 8 << 20);
          for (const uint64_t count : {1, 100, 5000, 100'000}) {
            run_case(rank, numbers, {Coll::kAllReduce, count, Memory::kArena, true, 0});
            run_case(rank, numbers, {Coll::kAllReduce, count, Memory::kPrivate, true, 0});
          }
          run_case(rank, numbers, {Coll::kAllToAll, 1000, Memory::kPrivate, false, 0});
        })) == "");
}

}  // namespace unit_shm_collectives
