// All-reduces on arenas in two levels, inside NUMA nodes and between them; WEFT_SHM_NODES sets which ranks
// share a node. Tests the results, to the bit, the traffic between nodes, and the loss of a rank in the
// middle.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "shm/lane.h"
#include "shm_rank.h"
#include "support/catch.h"
#include "support/sampling.h"
#include "support/sanitized.h"
#include "support/seed.h"
#include "support/simulation.h"

namespace unit_shm_two_level {

using namespace weft;
using namespace weft::shm;
using namespace weft::test;

namespace {

using Numbers = std::vector<int32_t>;  // the NUMA node of each rank
constexpr const char* kAlways = "off,two-level=0";

struct Call {
  Dtype dtype;
  ReduceOp op;
  uint64_t count;
  bool in_place = true;
  bool ordered = false;

  uint64_t bytes() const { return count * dtype_size(dtype); }
};

std::string text(const Call& call) {
  return cat(name(call.dtype), " ", name(call.op), " x ", call.count, call.in_place ? " in place" : "");
}

std::vector<ReduceOp> ops_of(Dtype dtype) {
  if (is_float(dtype)) {
    return {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProd,
            ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kPremulSum};
  }
  return {ReduceOp::kSum,  ReduceOp::kProd, ReduceOp::kMin, ReduceOp::kMax,
          ReduceOp::kBand, ReduceOp::kBor,  ReduceOp::kBxor};
}

// Returns a rank's input. Floats have very different sizes, so that the order of addition changes the sum.
Bytes input_of(const Call& call, int rank) {
  Bytes data(call.bytes());
  if (!is_float(call.dtype)) {
    uint32_t state = 12345u + static_cast<uint32_t>(rank);
    for (std::byte& byte : data) {
      state = state * 1664525u + 1013904223u;
      byte = static_cast<std::byte>(state >> 24);
    }
    return data;
  }
  std::vector<float> wide(call.count);
  for (uint64_t i = 0; i < call.count; i++) {
    const int size = static_cast<int>((i * 7 + static_cast<uint64_t>(rank) * 5) % 11) - 5;
    wide[i] =
        static_cast<float>(std::ldexp(std::sin(static_cast<double>(i % 1009 + 1) * (rank + 1.3)), size));
  }
  CopyArgs copy;
  copy.src = reinterpret_cast<const std::byte*>(wide.data());
  copy.dst = data.data();
  copy.count = call.count;
  copy.src_dtype = Dtype::kF32;
  copy.dst_dtype = call.dtype;
  host_ops().copy(copy);
  return data;
}

Bytes folded(const Call& call, const std::vector<Bytes>& inputs, double prescale, double postscale) {
  std::vector<const std::byte*> places;
  for (const Bytes& input : inputs) places.push_back(input.data());
  Bytes result(call.bytes());
  std::byte* const output = result.data();
  FoldArgs args;
  args.dtype = call.dtype;
  args.op = call.op;
  args.inputs = places.data();
  args.input_count = static_cast<int>(places.size());
  args.outputs = &output;
  args.output_count = 1;
  args.count = call.count;
  args.prescale = prescale;
  args.postscale = postscale;
  host_ops().fold(args);
  return result;
}

double prescale_of(const Call& call) {
  return call.op == ReduceOp::kPremulSum ? 0.75 : 1.0;
}
double postscale_of(const Call& call, size_t ranks) {
  return call.op == ReduceOp::kAvg ? 1.0 / static_cast<double>(ranks) : 1.0;
}

// Folds a node's ranks in order, then the nodes. 16-bit floats are scaled in the first fold, all others in
// the last.
Bytes in_two_levels(const Call& call, const Numbers& numbers) {
  const bool narrow = is_float(call.dtype) && dtype_size(call.dtype) == 2;
  const double scale = postscale_of(call, numbers.size());
  std::vector<Bytes> sums;
  for (const std::vector<int>& node : group_nodes(numbers).ranks) {
    std::vector<Bytes> inputs;
    for (const int r : node) inputs.push_back(input_of(call, r));
    sums.push_back(folded(call, inputs, prescale_of(call), narrow ? scale : 1.0));
  }
  return folded(call, sums, 1.0, narrow ? 1.0 : scale);
}

Bytes in_one_level(const Call& call, const Numbers& numbers) {
  std::vector<Bytes> inputs;
  for (size_t r = 0; r < numbers.size(); r++) inputs.push_back(input_of(call, static_cast<int>(r)));
  return folded(call, inputs, prescale_of(call), postscale_of(call, numbers.size()));
}

CollectiveArgs args_of(const Call& call, size_t ranks) {
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = call.dtype;
  args.op = call.op;
  args.count = call.count;
  args.prescale = prescale_of(call);
  args.postscale = postscale_of(call, ranks);
  args.ordered = call.ordered;
  return args;
}

// Both buffers lie in the arena.
struct Buffers {
  Buffers(ShmRank& owner, const Call& call) : rank(owner) {
    src = dst = rank.allocate(call.bytes());
    if (!call.in_place) dst = rank.allocate(call.bytes());
    const Bytes input = input_of(call, rank.rank());
    std::copy(input.begin(), input.end(), src);
  }
  ~Buffers() {
    (void)rank.collectives().arena()->free(src);
    if (dst != src) (void)rank.collectives().arena()->free(dst);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  ShmRank& rank;
  std::byte* src = nullptr;
  std::byte* dst = nullptr;
};

void run_call(ShmRank& rank, const Call& call, const Bytes& expected, const char* path) {
  Call mine = call;
  mine.in_place = call.in_place && rank.rank() % 3 != 1;  // ranks may differ
  const Buffers buffers(rank, mine);
  CollectiveArgs args = args_of(call, static_cast<size_t>(rank.size()));
  args.src = buffers.src;
  args.dst = buffers.dst;
  const Status status = rank.call(args, 60'000);
  if (!status.ok()) throw std::runtime_error(cat(text(call), ": ", status.text()));
  if (std::string(rank.lane().algorithm()) != path)
    throw std::runtime_error(cat(text(call), " ran as ", rank.lane().algorithm()));
  if (!std::equal(expected.begin(), expected.end(), buffers.dst))
    throw std::runtime_error(cat(text(call), ": other bits"));
  if (!mine.in_place) {
    const Bytes input = input_of(call, rank.rank());
    if (!std::equal(input.begin(), input.end(), buffers.src))
      throw std::runtime_error(cat(text(call), ": the source was changed"));
  }
}

// Runs ranks as threads or as processes. Returns the failures.
std::string on(const Numbers& numbers, bool processes, const LinkedBody& body) {
  const int ranks = static_cast<int>(numbers.size());
  return failure_text(processes ? run_linked_processes(ranks, body, 110)
                                : run_linked_threads(ranks, body, 110));
}

int32_t own(const Numbers& numbers, const SocketLinks& links) {
  return numbers[static_cast<size_t>(links.rank())];
}

// Calls whose expected results are computed before the ranks start.
struct Prepared {
  Prepared(const Numbers& numbers, std::vector<Call> wanted) : calls(std::move(wanted)) {
    for (const Call& call : calls) expected.push_back(in_two_levels(call, numbers));
  }
  std::vector<Call> calls;
  std::vector<Bytes> expected;

  std::string run(const Numbers& numbers, bool processes) const {
    return on(numbers, processes, [&](SocketLinks& links) {
      ShmRank rank(links, 32 << 20, kAlways, own(numbers, links));
      for (size_t i = 0; i < calls.size(); i++) run_call(rank, calls[i], expected[i], "two-level");
    });
  }
};

std::vector<Call> every_dtype_and_op() {
  std::vector<Call> calls;
  for (int d = 1; d <= kDtypeCount; d++) {
    const auto dtype = static_cast<Dtype>(d);
    for (const ReduceOp op : ops_of(dtype)) {
      // The shortest size for two levels, and one whose slices end anywhere.
      for (const uint64_t count : {kMappedMin / dtype_size(dtype), uint64_t{40'009}}) {
        calls.push_back({dtype, op, count, count % 2 == 0});
      }
    }
  }
  // Many rounds, and a short last one.
  calls.push_back({Dtype::kF32, ReduceOp::kSum, kThreadSanitizer ? 300'007u : 1'500'007u});
  calls.push_back({Dtype::kF64, ReduceOp::kAvg, 131'072 + 1});
  return calls;
}

std::vector<Call> some_calls() {
  return {{Dtype::kF32, ReduceOp::kSum, 100'003},
          {Dtype::kBf16, ReduceOp::kAvg, 50'001},
          {Dtype::kI32, ReduceOp::kMax, 2'049},
          {Dtype::kU8, ReduceOp::kBxor, 8'193},
          {Dtype::kF64, ReduceOp::kAvg, 9'001, false}};
}

const std::vector<Numbers>& shapes() {
  static const std::vector<Numbers> kShapes = {
      {0, 0, 1, 1}, {1, 0, 0, 1}, {5, 5, 5, 2, 2, 2}, {0, 1, 2, 2, 1, 0}};
  return kShapes;
}

Numbers in_order(int nodes, int width) {
  Numbers numbers;
  for (int r = 0; r < nodes * width; r++) numbers.push_back(r / width);
  return numbers;
}
Numbers in_turn(int nodes, int width) {
  Numbers numbers;
  for (int r = 0; r < nodes * width; r++) numbers.push_back(r % nodes);
  return numbers;
}

}  // namespace

TEST_CASE("two levels compute the sums of the nodes' sums, for every type and operation") {
  const std::vector<Numbers>& all = shapes();
  const size_t whole = Random(base_seed()).below(all.size());  // a sample has all types and operations here
  for (size_t i = 0; i < all.size(); i++) {
    const Numbers& numbers = all[i];
    INFO(list_text(std::vector<int>(numbers.begin(), numbers.end())));
    const bool every = !kThreadSanitizer && (i == whole || sampling(1, 0, 0) != 0);
    const Prepared prepared(numbers, every ? every_dtype_and_op() : some_calls());
    CHECK(prepared.run(numbers, false) == "");
    if (!kThreadSanitizer) CHECK(prepared.run(numbers, true) == "");
  }
}

TEST_CASE("two levels of eight and of sixteen ranks finish on any number of cores") {
  for (const Numbers& numbers : {in_order(2, 4), in_turn(4, 2), in_order(4, 4)}) {
    INFO(list_text(std::vector<int>(numbers.begin(), numbers.end())));
    const Prepared prepared(numbers, some_calls());
    CHECK(prepared.run(numbers, false) == "");
    if (!kThreadSanitizer) CHECK(prepared.run(numbers, true) == "");
  }
}

TEST_CASE("two levels of thirty-two ranks on four nodes finish", "[.][many]") {
  const Numbers numbers = in_order(4, 8);
  std::vector<Call> calls = some_calls();
  calls.push_back({Dtype::kF32, ReduceOp::kSum, 1'000'003});
  CHECK(Prepared(numbers, calls).run(numbers, true) == "");
}

TEST_CASE("an all-reduce in two levels can follow another one at once") {
  const Numbers numbers = {0, 1, 0, 1};
  const Call call{Dtype::kI32, ReduceOp::kSum, 30'011};
  for (const bool processes : {false, true}) {
    if (processes && kThreadSanitizer) continue;
    CHECK(on(numbers, processes, [&](SocketLinks& links) {
            ShmRank rank(links, 8 << 20, kAlways, own(numbers, links));
            auto* const data = reinterpret_cast<int32_t*>(rank.allocate(call.bytes()));
            for (int32_t number = 0; number < (kThreadSanitizer ? 40 : 200); number++) {
              for (uint64_t i = 0; i < call.count; i++) {
                data[i] = number * 100 + links.rank() * 7 + static_cast<int32_t>(i % 97);
              }
              CollectiveArgs args = args_of(call, 4);
              args.src = args.dst = reinterpret_cast<std::byte*>(data);
              if ((number + links.rank() * 3) % 11 == 0) ::usleep(100);
              WEFT_EXPECT_OK(rank.call(args));
              for (uint64_t i = 0; i < call.count; i++) {
                WEFT_EXPECT(data[i] == 4 * (number * 100 + static_cast<int32_t>(i % 97)) + 7 * 6);
              }
            }
          }) == "");
  }
}

TEST_CASE("one level is used below the threshold, for ordered sums, and with uneven nodes") {
  const Call call{Dtype::kF32, ReduceOp::kSum, 10'000};
  Call ordered = call;
  ordered.ordered = true;
  struct Setting {
    Numbers numbers;
    const char* thresholds;
    Call call;
  };
  for (const Setting& setting :
       {Setting{{0, 0, 1, 1}, "off,two-level=40001", call}, Setting{{0, 0, 1, 1}, "off", call},
        Setting{{0, 0, 1, 1}, "off,two-level=never", call}, Setting{{0, 0, 1, 1}, kAlways, ordered},
        Setting{{0, 1, 1, 1}, kAlways, call}, Setting{{0, 1, 2, 3}, kAlways, call},
        Setting{{0, 0, 0, 0}, kAlways, call}}) {
    const Bytes expected = in_one_level(setting.call, setting.numbers);
    CHECK(on(setting.numbers, false, [&](SocketLinks& links) {
            ShmRank rank(links, 8 << 20, setting.thresholds, own(setting.numbers, links));
            run_call(rank, setting.call, expected, "owner");
          }) == "");
  }
  // The bits of both ways differ; otherwise these tests would not detect which way was used.
  CHECK(in_one_level(call, {0, 0, 1, 1}) != in_two_levels(call, {0, 0, 1, 1}));
  // Peers cannot reach private memory, so it is reduced as on one node.
  CHECK(on({0, 0, 1, 1}, false, [&](SocketLinks& links) {
          ShmRank rank(links, 8 << 20, kAlways, links.rank() / 2);
          Bytes data = input_of(call, links.rank());
          CollectiveArgs args = args_of(call, 4);
          args.src = args.dst = data.data();
          WEFT_EXPECT_OK(rank.call(args));
          WEFT_EXPECT(data == in_one_level(call, {0, 0, 1, 1}));
        }) == "");
}

TEST_CASE("a mean of large halves does not overflow in two levels") {
  const Numbers numbers = {0, 0, 1, 1};
  CHECK(on(numbers, false, [&](SocketLinks& links) {
          ShmRank rank(links, 8 << 20, kAlways, own(numbers, links));
          constexpr uint64_t kCount = 5'000;
          auto* const data = reinterpret_cast<uint16_t*>(rank.allocate(kCount * 2));
          std::fill_n(data, kCount, uint16_t{0x7bff});  // 65504, the largest
          CollectiveArgs args = args_of({Dtype::kF16, ReduceOp::kAvg, kCount}, 4);
          args.src = args.dst = reinterpret_cast<std::byte*>(data);
          WEFT_EXPECT_OK(rank.call(args));
          WEFT_EXPECT(std::all_of(data, data + kCount, [](uint16_t half) { return half == 0x7bff; }));
        }) == "");
}

TEST_CASE("2 (k - 1) S bytes cross between nodes in two levels, 2 n (k - 1) / k S in one") {
  for (const Numbers& numbers :
       {in_order(2, 2), in_turn(2, 3), in_order(3, 2), in_order(2, 4), in_order(4, 4)}) {
    const auto n = static_cast<uint64_t>(numbers.size());
    const auto k = static_cast<uint64_t>(group_nodes(numbers).count());
    const Call call{Dtype::kF32, ReduceOp::kSum, 300'007};
    for (const bool two : {false, true}) {
      CHECK(on(numbers, false, [&](SocketLinks& links) {
              ShmRank rank(links, 8 << 20, two ? kAlways : "off", own(numbers, links));
              const Buffers buffers(rank, call);
              CollectiveArgs args = args_of(call, n);
              args.src = args.dst = buffers.dst;
              WEFT_EXPECT_OK(rank.call(args));
              const uint64_t mine = rank.group().across_bytes();
              std::vector<Bytes> all;
              SystemClock clock;
              WEFT_EXPECT_OK(links.all_gather(std::as_bytes(std::span(&mine, 1)), &all,
                                              Deadline::after(clock, 20'000, 0)));
              uint64_t across = 0;
              for (const Bytes& bytes : all) {
                uint64_t theirs = 0;
                std::memcpy(&theirs, bytes.data(), sizeof theirs);
                across += theirs;
              }
              const uint64_t expected = two ? 2 * (k - 1) * call.bytes() : 2 * n * (k - 1) / k * call.bytes();
              WEFT_EXPECT(across == expected);
              // Inside a node each rank reads its node's parts of its slice, and writes the result there
              // again.
              WEFT_EXPECT(rank.group().moved_bytes() < 4 * call.bytes());
            }) == "");
    }
  }
}

TEST_CASE("a bucket that is reduced in two levels has no in-place slices") {
  CHECK(on({0, 0, 1, 1}, false, [&](SocketLinks& links) {
          const Call call{Dtype::kF32, ReduceOp::kSum, 100'000};
          ShmRank rank(links, 8 << 20, "off,two-level=400001", links.rank() / 2);
          const Buffers buffers(rank, call);
          CollectiveArgs args = args_of(call, 4);
          args.src = args.dst = buffers.dst;
          WEFT_EXPECT(rank.collectives().in_place_slice(args).count > 0);
          Thresholds all = rank.group().thresholds();
          all.two_level = 0;
          rank.group().set_thresholds(all);
          WEFT_EXPECT(rank.collectives().in_place_slice(args).count == 0);
          args.ordered = true;
          WEFT_EXPECT(rank.collectives().in_place_slice(args).count > 0);
        }) == "");
}

TEST_CASE("claims outside the segment are refused in two levels") {
  for (const bool source : {false, true}) {
    CHECK(on({0, 0, 1, 1}, false, [&](SocketLinks& links) {
            ShmRank rank(links, 8 << 20, kAlways, links.rank() / 2);
            const Call call{Dtype::kI32, ReduceOp::kSum, 50'000};
            const Buffers buffers(rank, call);
            CollectiveArgs args = args_of(call, 4);
            args.src = args.dst = buffers.dst;
            SystemClock clock;
            std::vector<Bytes> all;
            const Deadline deadline = Deadline::after(clock, 20'000, 0);
            if (links.rank() == 3) {
              Group& group = rank.group();
              Post& post = group.at<LaneBlock>(3, group.layout().lane(0)).posts[0];
              post.descriptor = Descriptor::of(args);
              post.arrival.hash = post.descriptor.hash();
              post.arrival.claims = {};
              post.arrival.claims.flags = kMapped;
              post.arrival.claims.src_offset = source ? group.layout().total - 4 : group.layout().arena;
              post.arrival.claims.dst_offset = source ? group.layout().arena : 0;
              post.arrival.sequence.store(1, std::memory_order_release);
            } else {
              const Status status = rank.call(args);
              WEFT_EXPECT(status.code() == Code::kPeerFailed);
              WEFT_EXPECT(status.info().ranks == std::vector<int>{3});
              const Bytes input = input_of(call, links.rank());
              WEFT_EXPECT(std::equal(input.begin(), input.end(), buffers.dst));
            }
            WEFT_EXPECT_OK(links.all_gather({}, &all, deadline));
          }) == "");
  }
}

// Rank 0 gives up before the others exchange their nodes' sums, or before they distribute the results. It
// looks to them as if it continued, as a rank does that they have seen before it gave up.
void give_up_before(uint64_t stage, SocketLinks& links) {
  ShmRank rank(links, 8 << 20, kAlways, links.rank() / 2);
  const Call call{Dtype::kI32, ReduceOp::kSum, 20'000};  // one round
  const Buffers buffers(rank, call);
  CollectiveArgs args = args_of(call, 4);
  args.src = args.dst = buffers.dst;
  SystemClock clock;
  std::vector<Bytes> all;
  const auto meet = [&] { WEFT_EXPECT_OK(links.all_gather({}, &all, Deadline::after(clock, 20'000, 0))); };
  CollectiveLane& lane = rank.lane();
  LaneBlock& mine = rank.group().at<LaneBlock>(links.rank(), rank.group().layout().lane(0));
  lane.start(args, 0);
  meet();
  const auto poll_some = [&] {
    for (int i = 0; i < 100; i++) WEFT_EXPECT(lane.poll() != Poll::kFinished);
  };
  if (links.rank() != 0) poll_some();
  meet();
  if (links.rank() == 0 && stage == 1) mine.produced.value = phase(0, 1);
  meet();
  if (links.rank() != 0) poll_some();
  meet();
  WEFT_EXPECT(stage == 0 || links.rank() == 0 || mine.reduced.value == phase(0, 1));
  Bytes before;
  if (links.rank() == 0) {
    lane.abandon();
    WEFT_EXPECT(lane.writers().empty());
    before.assign(buffers.dst, buffers.dst + call.bytes());
    mine.posts[0].arrival.sequence = 1;
    (stage == 0 ? mine.produced : mine.reduced).value = phase(0, 1);
  }
  meet();
  if (links.rank() != 0) poll_some();
  meet();  // a rank that is still polling may be a writer
  if (links.rank() != 0) WEFT_EXPECT(lane.writers().empty());
  meet();
  WEFT_EXPECT(std::equal(before.begin(), before.end(), buffers.dst));
  if (links.rank() != 0) lane.abandon();
  meet();
}

TEST_CASE("no rank writes into the arena of a rank that has given up, in either stage of two levels") {
  for (const uint64_t stage : {0, 1}) {
    INFO(stage);
    CHECK(on({0, 0, 1, 1}, false, [&](SocketLinks& links) { give_up_before(stage, links); }) == "");
  }
}

TEST_CASE("ranks whose peer is killed in a stage of two levels name it and end the operation") {
  if (kThreadSanitizer) WEFT_SKIP("the thread sanitizer does not follow forks");
  constexpr int kVictim = 2;
  for (const char* const place :
       {"writing@3=kill", "writing@3.2=kill", "handing@3=kill", "handing@3.7=kill", ""}) {
    INFO(place);
    const std::vector<std::string> results = run_linked_processes(4, [&](SocketLinks& links) {
      const bool victim = links.rank() == kVictim;
      ShmRank rank(links, 16 << 20, kAlways, links.rank() / 2, victim ? place : "");
      const Call call{Dtype::kF32, ReduceOp::kMax, 1'000'003};
      const Buffers buffers(rank, call);
      CollectiveArgs args = args_of(call, 4);
      args.src = args.dst = buffers.dst;
      for (int i = 0;; i++) {
        // Without a failpoint: as soon as the others are in the middle of their nodes' sums.
        if (victim && i == 3 && *place == 0) {
          rank.lane().start(args, 3);
          ::usleep(20'000);
          ::kill(::getpid(), SIGKILL);
        }
        const Status status = rank.call(args, i < 3 ? 20'000 : 1'500);
        if (status.ok()) {
          WEFT_EXPECT(i < 4);
          continue;
        }
        WEFT_EXPECT(i == 3);
        WEFT_EXPECT(status.code() == Code::kTimeout);
        const std::vector<int>& ranks = status.info().ranks;
        WEFT_EXPECT(std::count(ranks.begin(), ranks.end(), kVictim) == 1);
        rank.lane().abandon();
        return;
      }
    });
    for (int r = 0; r < 4; r++) CHECK(results[static_cast<size_t>(r)] == (r == kVictim ? "died" : ""));
  }
}

}  // namespace unit_shm_two_level
