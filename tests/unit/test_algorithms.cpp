// Every algorithm of lib/coll on groups of 1 to 9 and 16 ranks, which are lanes of one thread over a
// transport that completes messages in random order. It reads and writes the buffers of a message at that
// moment, so a schedule that reuses a buffer too early gets wrong results.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <tuple>

#include "base/text.h"
#include "coll/lane.h"
#include "coll/select.h"
#include "kernels/host_ops.h"
#include "support/catch.h"
#include "support/seed.h"
#include "support/simulation.h"

namespace unit_algorithms {

using namespace weft;
using namespace weft::coll;
using weft::test::Random;

namespace {

// The messages between all ranks of a group. One of those that both sides have posted completes at a time.
class Hub {
 public:
  explicit Hub(uint64_t seed) : random_(seed) {}

  struct Posted {
    const std::byte* data = nullptr;
    std::byte* room = nullptr;
    uint64_t bytes = 0;
    uint64_t capacity = 0;
    Descriptor descriptor;
    Message* send = nullptr;
    Message* receive = nullptr;
  };
  using Key = std::tuple<int, int, uint32_t, uint64_t, uint32_t>;  // from, to, lane, slot, step
  Posted& posted(int from, int to, const MessageTag& tag) {
    return posted_[Key(from, to, tag.lane, tag.slot, tag.step)];
  }
  // True if a message of this operation waits for its receive.
  bool peek(int from, int to, uint32_t lane, uint64_t slot, Descriptor* descriptor) const {
    for (auto at = posted_.lower_bound(Key(from, to, lane, slot, 0));
         at != posted_.end() && at->first < Key(from, to, lane, slot + 1, 0); ++at) {
      if (at->second.send == nullptr || at->second.receive != nullptr) continue;
      *descriptor = at->second.descriptor;
      return true;
    }
    return false;
  }
  void complete_one() {
    std::vector<Key> ready;
    for (const auto& [key, posted] : posted_) {
      if (posted.send != nullptr && posted.receive != nullptr) ready.push_back(key);
    }
    if (ready.empty()) return;
    const Key key = ready[random_.below(ready.size())];
    Posted& one = posted_[key];
    Message& receive = *one.receive;
    receive.received_bytes = one.bytes;
    receive.peer_descriptor = one.descriptor;
    if (one.bytes > 0) std::memcpy(one.room, one.data, std::min(one.bytes, one.capacity));
    receive.done = one.send->done = true;
    posted_.erase(key);
  }
  void cancel(Message* message) {
    for (auto at = posted_.begin(); at != posted_.end();) {
      Posted& one = at->second;
      if (one.send == message) one.send = nullptr;
      if (one.receive == message) one.receive = nullptr;
      at = one.send == nullptr && one.receive == nullptr ? posted_.erase(at) : std::next(at);
    }
    message->done = true;
  }
  bool empty() const { return posted_.empty(); }
  Random& random() { return random_; }

 private:
  Random random_;
  std::map<Key, Posted> posted_;
};

class HubTransport final : public Transport {
 public:
  HubTransport(Hub& hub, int rank) : hub_(hub), rank_(rank) {}
  void send(int peer, const MessageTag& tag, const Descriptor& descriptor, const std::byte* data,
            uint64_t size, Message* message) override {
    Hub::Posted& one = hub_.posted(rank_, peer, tag);
    one.data = data;
    one.bytes = size;
    one.descriptor = descriptor;
    one.send = message;
  }
  void receive(int peer, const MessageTag& tag, std::byte* data, uint64_t capacity,
               Message* message) override {
    Hub::Posted& one = hub_.posted(peer, rank_, tag);
    one.room = data;
    one.receive = message;
    one.capacity = capacity;
  }
  bool progress() override { return false; }
  void cancel(Message* message) override { hub_.cancel(message); }
  bool peek(int peer, uint32_t lane, uint64_t slot, Descriptor* descriptor) override {
    return hub_.peek(peer, rank_, lane, slot, descriptor);
  }
  TransportCounters counters() const override { return {}; }
  const char* name() const override { return "hub"; }

 private:
  Hub& hub_;
  const int rank_;
};

bool is_collective(const Algorithm& algorithm) {
  return algorithm.coll != Coll::kSend && algorithm.coll != Coll::kRecv && !has_blocks(algorithm.coll);
}

// Each reading advances the time.
class LookingClock final : public Clock {
 public:
  uint64_t now_ns() override { return now_ += 10'000'000; }
  void relax(uint32_t) override {}
  void sleep(const std::atomic<uint32_t>&, uint32_t, uint64_t) override {}
  void wake_all(const std::atomic<uint32_t>&) override {}

 private:
  uint64_t now_ = 0;
};

// The ranks of a group, which force one algorithm.
class Group {
 public:
  // reports: ranks that wait for long send progress reports.
  Group(const Algorithm& algorithm, int size, uint64_t seed, bool reports = false) : hub_(seed) {
    Forced forced;
    REQUIRE(forced.add(algorithm).ok());
    for (int r = 0; r < size; r++) {
      transports_.push_back(std::make_unique<HubTransport>(hub_, r));
      reports_.push_back(std::make_unique<ProgressReports>(*transports_.back(), clock_, r, size));
      contexts_.push_back(std::make_unique<LaneContext>(LaneContext{
          *transports_.back(), host_ops(), r, size, forced, {}, reports ? reports_.back().get() : nullptr}));
      lanes_.push_back(std::make_unique<TransportLane>(*contexts_.back(), LaneKey()));
    }
  }
  TransportLane& lane(int rank) { return *lanes_[static_cast<size_t>(rank)]; }

  // Runs one operation, with the arguments of each rank. Returns the ranks' results.
  std::vector<Status> run(const std::vector<CollectiveArgs>& args) {
    const uint64_t slot = slot_++;
    std::vector<size_t> order(lanes_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[hub_.random().below(i)]);
    for (const size_t r : order) lanes_[r]->start(args[r], slot);
    std::vector<Status> results(lanes_.size(), Status::error(Code::kTimeout, "did not end"));
    size_t left = lanes_.size();
    for (uint64_t idle = 0; left > 0 && idle < 200'000; idle++) {
      const size_t r = hub_.random().below(lanes_.size());
      if (results[r].code() == Code::kTimeout && lanes_[r]->poll() == Poll::kFinished) {
        results[r] = lanes_[r]->result();
        left--;
      }
      hub_.complete_one();
    }
    return results;
  }
  bool idle() const { return hub_.empty(); }
  // Starts the operation on all ranks but one, which wait for it for a while.
  void start_without(int absent, const std::vector<CollectiveArgs>& args) {
    for (size_t r = 0; r < lanes_.size(); r++) {
      if (static_cast<int>(r) != absent) lanes_[r]->start(args[r], 0);
    }
    for (int i = 0; i < 5000; i++) {
      for (size_t r = 0; r < lanes_.size(); r++) {
        if (static_cast<int>(r) != absent) lanes_[r]->poll();
        hub_.complete_one();
      }
    }
  }

 private:
  Hub hub_;
  LookingClock clock_;
  std::vector<std::unique_ptr<HubTransport>> transports_;
  std::vector<std::unique_ptr<ProgressReports>> reports_;
  std::vector<std::unique_ptr<LaneContext>> contexts_;
  std::vector<std::unique_ptr<TransportLane>> lanes_;
  uint64_t slot_ = 0;
};

struct Call {
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kNone;
  uint64_t count = 0;
  int root = 0;
  bool in_place = false;
};

// Small whole numbers, whose reductions are exact in every dtype and order.
void fill(Call call, std::vector<std::byte>* data, Random& random) {
  const uint32_t element = dtype_size(call.dtype);
  for (size_t at = 0; at + element <= data->size(); at += element) {
    const auto drawn = static_cast<int>(random.below(3));
    const int value = call.op == ReduceOp::kProd ? 1 + drawn / 2 : drawn;
    std::byte* const to = data->data() + at;
    const auto put = [&](auto number) { std::memcpy(to, &number, sizeof number); };
    if (call.dtype == Dtype::kF64) {
      put(static_cast<double>(value));
    } else if (call.dtype == Dtype::kF32) {
      put(static_cast<float>(value));
    } else if (call.dtype == Dtype::kF16) {
      put(static_cast<uint16_t>(value == 0 ? 0 : value == 1 ? 0x3c00 : 0x4000));
    } else if (call.dtype == Dtype::kBf16) {
      put(static_cast<uint16_t>(value == 0 ? 0 : value == 1 ? 0x3f80 : 0x4000));
    } else {
      const auto whole = static_cast<uint64_t>(value);
      std::memcpy(to, &whole, element);
    }
  }
}

using Buffers = std::vector<std::vector<std::byte>>;  // by rank

// Returns elements [first, first + count) of all ranks' fold.
std::vector<std::byte> folded(const Call& call, double postscale, const Buffers& sources, uint64_t first,
                              uint64_t count) {
  std::vector<const std::byte*> inputs;
  for (const auto& source : sources) inputs.push_back(source.data() + first * dtype_size(call.dtype));
  std::vector<std::byte> out(count * dtype_size(call.dtype));
  std::byte* const to = out.data();
  FoldArgs fold;
  fold.dtype = call.dtype;
  fold.op = call.op;
  fold.inputs = inputs.data();
  fold.input_count = static_cast<int>(inputs.size());
  fold.outputs = &to;
  fold.output_count = 1;
  fold.count = count;
  fold.postscale = postscale;
  if (count > 0) host_ops().fold(fold);
  return out;
}

// Runs the call on all ranks and compares the results with their expectation.
void check(const Algorithm& algorithm, Group& group, const Call& call, int size, Random& random) {
  INFO(name(algorithm.coll) << " " << algorithm.name << ", " << size << " ranks, " << name(call.dtype) << " "
                            << name(call.op) << " x " << call.count << (call.in_place ? " in place" : ""));
  const auto ranks = static_cast<uint64_t>(size);
  const uint64_t block = call.count * dtype_size(call.dtype);
  const bool many_in = algorithm.coll == Coll::kReduceScatter || algorithm.coll == Coll::kAllToAll ||
                       algorithm.coll == Coll::kScatter;
  const bool many_out = algorithm.coll == Coll::kAllGather || algorithm.coll == Coll::kAllToAll ||
                        algorithm.coll == Coll::kGather;
  const double postscale = call.op == ReduceOp::kAvg ? 0.5 : 1.0;
  Buffers sources(ranks), targets(ranks);
  std::vector<CollectiveArgs> args(ranks);
  for (uint64_t r = 0; r < ranks; r++) {
    sources[r].resize(block * (many_in ? ranks : 1));
    fill(call, &sources[r], random);
    targets[r].assign(block * (many_out ? ranks : 1), std::byte{0xa5});
  }
  const Buffers given = sources;
  for (uint64_t r = 0; r < ranks; r++) {
    CollectiveArgs& one = args[r];
    one.coll = algorithm.coll;
    one.dtype = call.dtype;
    one.op = call.op;
    one.count = call.count;
    one.peer = has_root(algorithm.coll) ? call.root : 0;
    one.postscale = postscale;
    one.src = sources[r].data();
    one.dst = targets[r].data();
    if (!call.in_place) continue;
    if (algorithm.coll == Coll::kReduceScatter) {
      one.dst = sources[r].data() + r * block;
    } else if (algorithm.coll == Coll::kAllGather) {
      std::memcpy(targets[r].data() + r * block, sources[r].data(), block);
      one.src = targets[r].data() + r * block;
    } else {
      one.dst = sources[r].data();
    }
  }
  for (const Status& status : group.run(args)) {
    INFO(status.text());
    REQUIRE(status.ok());
  }
  REQUIRE(group.idle());  // every message had its receive
  const auto root = static_cast<uint64_t>(call.root);
  for (uint64_t r = 0; r < ranks; r++) {
    std::vector<std::byte> expected;
    const auto append = [&](const std::vector<std::byte>& from, uint64_t at) {
      expected.insert(expected.end(), from.begin() + static_cast<std::ptrdiff_t>(at),
                      from.begin() + static_cast<std::ptrdiff_t>(at + block));
    };
    switch (algorithm.coll) {
      case Coll::kAllReduce:
      case Coll::kReduce:
        if (algorithm.coll == Coll::kReduce && r != root) continue;
        expected = folded(call, postscale, given, 0, call.count);
        break;
      case Coll::kReduceScatter:
        expected = folded(call, postscale, given, r * call.count, call.count);
        break;
      case Coll::kBroadcast:
        expected = given[root];
        break;
      case Coll::kScatter:
        append(given[root], r * block);
        break;
      case Coll::kGather:
        if (r != root) continue;
        [[fallthrough]];
      case Coll::kAllGather:
        for (const auto& source : given) append(source, 0);
        break;
      case Coll::kAllToAll:
        for (const auto& source : given) append(source, r * block);
        break;
      default:
        continue;
    }
    INFO("rank " << r);
    REQUIRE((block == 0 || std::memcmp(args[r].dst, expected.data(), expected.size()) == 0));
  }
}

bool in_place_allowed(Coll coll) {
  return coll == Coll::kAllReduce || coll == Coll::kReduce || coll == Coll::kReduceScatter ||
         coll == Coll::kAllGather || coll == Coll::kBroadcast;
}

template <class Run>
void each_algorithm(Run&& run) {
  for (const AlgorithmRow row : algorithms()) {
    if (is_collective(row())) run(row());
  }
}

}  // namespace

TEST_CASE("every algorithm is right on 1 to 9 and 16 ranks for every count, in any order of messages") {
  each_algorithm([](const Algorithm& algorithm) {
    for (const int size : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
      Random random(test::base_seed() + static_cast<uint64_t>(size));
      Group group(algorithm, size, random.next());
      for (const uint64_t count : {0u, 1u, 2u, 15u, 17u, 1000u, 16'400u, 70'001u}) {
        if (count > 20'000 && size > 9) continue;
        Call call;
        call.op = is_reduction(algorithm.coll) ? ReduceOp::kSum : ReduceOp::kNone;
        call.count = count;
        call.root = static_cast<int>(random.below(static_cast<uint64_t>(size)));
        call.in_place = in_place_allowed(algorithm.coll) && random.chance(2);
        check(algorithm, group, call, size, random);
      }
    }
  });
}

TEST_CASE("every algorithm reduces every dtype with every op") {
  each_algorithm([](const Algorithm& algorithm) {
    if (!is_reduction(algorithm.coll)) return;
    for (const int size : {3, 4, 7}) {
      Random random(test::base_seed() + static_cast<uint64_t>(size));
      Group group(algorithm, size, random.next());
      for (int d = 1; d <= kDtypeCount; d++) {
        for (int op = 1; op <= kReduceOpCount; op++) {
          Call call;
          call.dtype = static_cast<Dtype>(d);
          call.op = static_cast<ReduceOp>(op);
          if (!check_reduction(call.op, call.dtype).ok()) continue;
          call.count = random.chance(2) ? 37 : 9001;
          call.root = static_cast<int>(random.below(static_cast<uint64_t>(size)));
          call.in_place = random.chance(2);
          check(algorithm, group, call, size, random);
        }
      }
    }
  });
}

TEST_CASE("long vectors are pipelined without reusing a buffer too early") {
  each_algorithm([](const Algorithm& algorithm) {
    for (const int size : {2, 3, 4, 5, 8, 13}) {
      Random random(test::base_seed() + static_cast<uint64_t>(size));
      Group group(algorithm, size, random.next());
      for (const bool in_place : {false, true}) {
        if (in_place && !in_place_allowed(algorithm.coll)) continue;
        Call call;
        call.op = is_reduction(algorithm.coll) ? ReduceOp::kSum : ReduceOp::kNone;
        const bool whole = algorithm.coll == Coll::kAllReduce || algorithm.coll == Coll::kReduce;
        call.count = (whole ? 2'000'003 : 500'003) / static_cast<uint64_t>(size);
        call.in_place = in_place;
        check(algorithm, group, call, size, random);
      }
    }
  });
}

TEST_CASE("an all-reduce that folds partial results gives all ranks the same bits") {
  each_algorithm([](const Algorithm& algorithm) {
    if (algorithm.coll != Coll::kAllReduce) return;
    for (const int size : {2, 3, 5, 8, 9}) {
      Random random(test::base_seed() + static_cast<uint64_t>(size));
      Group group(algorithm, size, random.next());
      std::vector<std::vector<float>> data(static_cast<size_t>(size));
      std::vector<CollectiveArgs> args(data.size());
      for (size_t r = 0; r < data.size(); r++) {
        for (int i = 0; i < 40'000; i++)
          data[r].push_back(static_cast<float>(random.below(1'000'003)) / 1000.0F);
        args[r].coll = Coll::kAllReduce;
        args[r].dtype = Dtype::kF32;
        args[r].op = ReduceOp::kSum;
        args[r].count = data[r].size();
        args[r].src = args[r].dst = reinterpret_cast<std::byte*>(data[r].data());
      }
      for (const Status& status : group.run(args)) REQUIRE(status.ok());
      INFO(algorithm.name << ", " << size << " ranks");
      for (const auto& one : data) CHECK(std::memcmp(one.data(), data[0].data(), one.size() * 4) == 0);
    }
  });
}

TEST_CASE("folds that must happen at once ignore a named algorithm with partial results") {
  const auto ran = [](Dtype dtype, bool ordered, double prescale) {
    Forced forced;
    REQUIRE(parse_forced("all_reduce:ring", &forced).ok());
    CollectiveArgs args;
    args.coll = Coll::kAllReduce;
    args.dtype = dtype;
    args.ordered = ordered;
    args.prescale = prescale;
    Shape shape;
    shape.size = 4;
    shape.count = 1 << 20;
    shape.element = dtype_size(dtype);
    shape.at_once = folds_at_once(args);
    return std::string(select(Coll::kAllReduce, shape, forced).name);
  };
  CHECK(ran(Dtype::kF32, false, 1.0) == "ring");
  CHECK(ran(Dtype::kU16, false, 1.0) == "ring");
  CHECK(ran(Dtype::kF32, true, 1.0) == "direct");
  CHECK(ran(Dtype::kF32, false, 2.0) == "direct");
  CHECK(ran(Dtype::kF16, false, 1.0) == "direct");
  CHECK(ran(Dtype::kBf16, false, 1.0) == "direct");
}

TEST_CASE("no rank completes an operation in which another rank makes a different call") {
  each_algorithm([](const Algorithm& algorithm) {
    if (!algorithm.synchronises) return;
    for (const int size : {2, 3, 5, 8}) {
      for (int odd = 0; odd < size; odd++) {
        Random random(test::base_seed() + static_cast<uint64_t>(odd));
        Group group(algorithm, size, random.next());
        Buffers memory(static_cast<size_t>(size), std::vector<std::byte>(size_t{1} << 16));
        std::vector<CollectiveArgs> args(static_cast<size_t>(size));
        for (int r = 0; r < size; r++) {
          CollectiveArgs& one = args[static_cast<size_t>(r)];
          one.coll = algorithm.coll;
          one.dtype = Dtype::kF32;
          one.op = is_reduction(algorithm.coll) ? ReduceOp::kSum : ReduceOp::kNone;
          one.count = algorithm.coll == Coll::kBarrier ? 0 : 100;
          one.tag = r == odd ? 1 : 0;
          one.src = one.dst = memory[static_cast<size_t>(r)].data();
        }
        INFO(name(algorithm.coll) << " " << algorithm.name << ", " << size << " ranks, odd rank " << odd);
        int named = 0;
        for (const Status& status : group.run(args)) {
          CHECK(!status.ok());
          named += status.code() == Code::kMismatch ? 1 : 0;
        }
        CHECK(named > 0);
      }
    }
  });
}

TEST_CASE("every rank that waits without a handshake names the absent rank") {
  each_algorithm([](const Algorithm& algorithm) {
    if (!algorithm.synchronises) return;
    for (const int size : {2, 3, 5, 8}) {
      for (int absent = 0; absent < size; absent++) {
        Group group(algorithm, size, test::base_seed(), true);
        Buffers memory(static_cast<size_t>(size), std::vector<std::byte>(size_t{1} << 16));
        std::vector<CollectiveArgs> args(static_cast<size_t>(size));
        for (int r = 0; r < size; r++) {
          CollectiveArgs& one = args[static_cast<size_t>(r)];
          one.coll = algorithm.coll;
          one.dtype = Dtype::kF32;
          one.op = is_reduction(algorithm.coll) ? ReduceOp::kSum : ReduceOp::kNone;
          one.count = algorithm.coll == Coll::kBarrier ? 0 : 100;
          one.src = one.dst = memory[static_cast<size_t>(r)].data();
        }
        group.start_without(absent, args);
        INFO(name(algorithm.coll) << " " << algorithm.name << ", " << size << " ranks without " << absent);
        for (int r = 0; r < size; r++) {
          if (r != absent) CHECK(group.lane(r).absent() == std::vector<int>{absent});
        }
      }
    }
  });
}

TEST_CASE("reports of ranks that wait show a different call in the same operation") {
  Hub hub(test::base_seed());
  LookingClock clock;
  HubTransport first(hub, 0), second(hub, 1);
  ProgressReports mine(first, clock, 0, 2), theirs(second, clock, 1, 2);
  ProgressReports::Wait here, there;
  here.slot = there.slot = 7;
  here.descriptor.count = 10;
  there.descriptor.count = 11;
  mine.begins();
  theirs.begins();
  const auto wait = [&](ProgressReports& reports, ProgressReports::Wait* one) {
    for (int poll = 0; poll < 5000; poll++) {
      reports.waits(one);
      hub.complete_one();
    }
  };
  wait(theirs, &there);
  CHECK(!mine.different(here));  // not looked yet
  wait(mine, &here);
  const auto different = mine.different(here);
  REQUIRE(different);
  CHECK((different->first == 1 && different->second == there.descriptor));
  here.slot = 8;
  CHECK(!mine.different(here));
  here.slot = 7;
  here.descriptor = there.descriptor;
  CHECK(!mine.different(here));
}

}  // namespace unit_algorithms
