// The schedules that bench/schedules exports. Every rank's schedule is executed with numbers: each rank
// contributes random 64-bit words, so that a sum is right only if it has each contribution exactly once.
#include <algorithm>
#include <deque>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/splitmix.h"
#include "coll/select.h"
#include "schedules/model.h"
#include "schedules/trace.h"
#include "support/catch.h"

namespace unit_schedules {

using namespace weft;
using namespace weft::bench;
using namespace weft::coll;

namespace {

// When the data of a message moves: when it is sent, or only when no rank can continue without it.
enum class Delivery { kEarly, kLate };

uint64_t word(int rank, uint64_t index) {
  return scramble(static_cast<uint64_t>(rank) * 0x1'0000'0001 + scramble(index + kSplitMixStep));
}

class Execution {
 public:
  Execution(const Operation& operation, Delivery delivery) : operation_(operation), delivery_(delivery) {
    const Coll coll = operation.algorithm->coll;
    const auto n = static_cast<uint64_t>(operation.size);
    const bool blocks_in = coll == Coll::kReduceScatter || coll == Coll::kScatter || coll == Coll::kAllToAll;
    const bool blocks_out = coll == Coll::kAllGather || coll == Coll::kGather || coll == Coll::kAllToAll;
    for (int rank = 0; rank < operation.size; rank++) {
      Rank& one = ranks_.emplace_back();
      one.schedule = schedule_of(operation, rank);
      one.memory[0].resize(operation.count * (blocks_in ? n : 1));
      for (size_t i = 0; i < one.memory[0].size(); i++) one.memory[0][i] = word(rank, i);
      one.memory[1].resize(operation.count * (blocks_out ? n : 1));
      one.memory[2].resize(one.schedule.scratch_bytes() / 8);
    }
    sums_.resize(ranks_[0].memory[0].size());
    for (const Rank& one : ranks_) {
      for (size_t i = 0; i < sums_.size(); i++) sums_[i] += one.memory[0][i];
    }
  }

  // Returns false in a deadlock.
  bool run() {
    for (int rank = 0; rank < operation_.size; rank++) begin_round(rank);
    while (true) {
      bool advanced = false;
      for (int rank = 0; rank < operation_.size; rank++) {
        while (advance(rank)) advanced = true;
      }
      if (advanced) continue;
      if (late_.empty()) break;
      // The last posted messages move first.
      const Key key = late_.back();
      late_.pop_back();
      deliver(posted_[key]);
    }
    for (const Rank& one : ranks_) {
      if (one.round != one.schedule.rounds().size()) return false;
    }
    return posted_.empty();
  }

  // Returns the number of elements of this rank's result that are wrong.
  size_t wrong(int rank) const {
    const auto expected = [&](uint64_t i) -> uint64_t {
      const uint64_t n = operation_.count;
      const uint64_t block = n == 0 ? 0 : i / n, offset = n == 0 ? 0 : i % n;
      switch (operation_.algorithm->coll) {
        case Coll::kAllReduce:
        case Coll::kReduce:
          return sums_[i];
        case Coll::kReduceScatter:
          return sums_[static_cast<uint64_t>(rank) * n + i];
        case Coll::kBroadcast:
          return word(0, i);
        case Coll::kScatter:
          return word(0, static_cast<uint64_t>(rank) * n + i);
        case Coll::kAllToAll:
          return word(static_cast<int>(block), static_cast<uint64_t>(rank) * n + offset);
        default:
          return word(static_cast<int>(block), offset);
      }
    };
    const Coll coll = operation_.algorithm->coll;
    const bool has_result =
        coll != Coll::kBarrier && (rank == 0 || (coll != Coll::kReduce && coll != Coll::kGather));
    if (!has_result) return 0;
    const std::vector<uint64_t>& result = ranks_[static_cast<size_t>(rank)].memory[1];
    size_t count = 0;
    for (uint64_t i = 0; i < result.size(); i++) count += result[i] == expected(i) ? 0 : 1;
    return count;
  }

 private:
  using Key = std::tuple<int, int, uint32_t>;  // from, to, step
  struct Posted {
    const Transfer* send = nullptr;
    const Transfer* receive = nullptr;
    int from = 0, to = 0;
    std::vector<uint64_t> data;  // kEarly: copied when it was sent
  };
  struct Rank {
    Schedule schedule;
    std::vector<uint64_t> memory[3];  // by Space
    size_t round = 0;
    size_t open[2] = {0, 0};  // messages of this round and of the next one that are not complete
  };

  uint64_t* at(int rank, Ref ref) {
    return ranks_[static_cast<size_t>(rank)].memory[static_cast<size_t>(ref.space)].data() + ref.offset / 8;
  }

  void begin_round(int rank) {
    Rank& one = ranks_[static_cast<size_t>(rank)];
    if (one.round == one.schedule.rounds().size()) return;
    for (const bool sends : {false, true}) {
      if (one.round == 0) post(rank, 0, When::kAhead, sends);
      post(rank, one.round, When::kInRound, sends);
      if (one.round + 1 < one.schedule.rounds().size()) post(rank, one.round + 1, When::kAhead, sends);
    }
    work(rank, 0, one.schedule.meanwhile(one.round));
  }

  void post(int rank, size_t round, When when, bool sends) {
    Rank& one = ranks_[static_cast<size_t>(rank)];
    for (const Transfer& t : one.schedule.transfers(round)) {
      if (t.is_send != sends || t.when != when) continue;
      const Key key = sends ? Key(rank, t.peer, t.step) : Key(t.peer, rank, t.step);
      Posted& message = posted_[key];
      std::tie(message.from, message.to, std::ignore) = key;
      const Transfer*& side = sends ? message.send : message.receive;
      REQUIRE(side == nullptr);
      side = &t;
      one.open[round - one.round]++;
      if (sends && delivery_ == Delivery::kEarly && t.bytes > 0) {
        message.data.assign(at(rank, t.memory), at(rank, t.memory) + t.bytes / 8);
      }
      if (message.send == nullptr || message.receive == nullptr) continue;
      if (delivery_ == Delivery::kEarly) {
        deliver(message);
      } else {
        late_.push_back(key);
      }
    }
  }

  void deliver(Posted& message) {
    REQUIRE(message.send->bytes == message.receive->bytes);
    if (message.send->bytes > 0) {
      const uint64_t* const from =
          delivery_ == Delivery::kEarly ? message.data.data() : at(message.from, message.send->memory);
      std::copy_n(from, message.send->bytes / 8, at(message.to, message.receive->memory));
    }
    complete(message.from, message.send);
    complete(message.to, message.receive);
    posted_.erase(Key(message.from, message.to, message.send->step));
  }

  void complete(int rank, const Transfer* transfer) {
    Rank& one = ranks_[static_cast<size_t>(rank)];
    const auto now = one.schedule.transfers(one.round);
    const bool is_now = transfer >= now.data() && transfer < now.data() + now.size();
    one.open[is_now ? 0 : 1]--;
  }

  bool advance(int rank) {
    Rank& one = ranks_[static_cast<size_t>(rank)];
    if (one.round == one.schedule.rounds().size() || one.open[0] > 0) return false;
    work(rank, one.schedule.meanwhile(one.round), one.schedule.works(one.round).size());
    one.round++;
    one.open[0] = std::exchange(one.open[1], 0);
    begin_round(rank);
    return true;
  }

  void work(int rank, size_t begin, size_t end) {
    const Rank& one = ranks_[static_cast<size_t>(rank)];
    for (const Work& work : one.schedule.works(one.round).subspan(begin, end - begin)) {
      const uint64_t count = work.kind == WorkKind::kCopy ? work.count / 8 : work.count;
      for (uint64_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (const Ref& input : one.schedule.inputs(work)) sum += at(rank, input)[i];
        at(rank, work.to)[i] = sum;
      }
    }
  }

  const Operation operation_;
  const Delivery delivery_;
  std::deque<Rank> ranks_;
  std::vector<uint64_t> sums_;  // of all ranks' inputs
  std::map<Key, Posted> posted_;
  std::vector<Key> late_;
};

void check(int size, uint64_t count) {
  for (const AlgorithmRow row : algorithms()) {
    const Algorithm& algorithm = row();
    if (algorithm.coll == Coll::kSend || algorithm.coll == Coll::kRecv || has_blocks(algorithm.coll))
      continue;
    for (const Delivery delivery : {Delivery::kEarly, Delivery::kLate}) {
      INFO(name(algorithm.coll) << ' ' << algorithm.name << ", " << size << " ranks, " << count
                                << " elements");
      Execution execution({&algorithm, size, count, 8}, delivery);
      REQUIRE(execution.run());
      size_t wrong = 0;
      for (int rank = 0; rank < size; rank++) wrong += execution.wrong(rank);
      REQUIRE(wrong == 0);
    }
  }
}

}  // namespace

TEST_CASE("executed schedules give every result each contribution once, with early and late messages") {
  for (int size = 2; size <= 17; size++) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{300}, uint64_t{9000}}) check(size, count);
  }
}

TEST_CASE("executed schedules of 64 ranks give every result each contribution once", "[.][many]") {
  check(64, 600);
}

TEST_CASE("a trace posts what the lane posts, with the next round's early messages before it waits") {
  const Operation operation{&find_algorithm("all_reduce", "one_shot"), 2, 4, 4};
  std::ostringstream trace;
  write_trace(trace, operation, 1);
  CHECK(trace.str() ==
        "1 init\n1 comm_size 2\n1 irecv 0 0 112\n1 isend 0 0 112\n1 waitall\n1 compute 48\n1 finalize\n");
  const Operation chunks{&find_algorithm("all_reduce", "direct"), 2, 600'000, 4};
  std::ostringstream early;
  write_trace(early, chunks, 0);
  const std::string text = early.str();
  CHECK(text.find("0 isend 1 2 ") < text.find("0 wait 1 0 0\n"));
  CHECK(text.find("0 isend 1 4 ") > text.find("0 wait 1 0 0\n"));
}

TEST_CASE("an unknown algorithm is refused with the list of those that exist") {
  std::string text;
  try {
    find_algorithm("all_reduce", "circle");
  } catch (const std::invalid_argument& error) {
    text = error.what();
  }
  CHECK(text.find("\"circle\"") != std::string::npos);
  CHECK(text.find("all_reduce direct") != std::string::npos);
}

TEST_CASE("the model of one rank agrees with that of all ranks where they are symmetric") {
  const Costs costs{2e-6, 1e-6, 8e-11, 1e-11, 1e-10};
  for (const char* name : {"one_shot", "direct", "ring", "halving_doubling", "doubling"}) {
    for (const int size : {2, 4, 8, 16}) {
      for (const uint64_t count : {uint64_t{1024}, uint64_t{1} << 20}) {
        const Operation operation{&find_algorithm("all_reduce", name), size, count, 4};
        INFO(name << ", " << size << " ranks, " << count << " elements");
        const double all = walk_all(operation, costs), one = walk_one(operation, costs);
        CHECK(one == Approx(all).epsilon(0.02));
      }
    }
  }
}

TEST_CASE("the model of one message is its costs") {
  const Operation operation{&find_algorithm("all_reduce", "doubling"), 2, 1000, 4};
  // Each rank sends 4000 bytes, receives as many, and folds two inputs into one result.
  const double link = (4000 + static_cast<double>(kHeaderBytes)) * 1e-9;
  CHECK(walk_all(operation, {5e-6, 0, 1e-9, 0, 0}) == Approx(5e-6 + link));
  CHECK(walk_all(operation, {0, 1e-6, 0, 0, 0}) == Approx(2e-6));
  CHECK(walk_all(operation, {0, 0, 0, 0, 1e-9}) == Approx(12e-6));
}

}  // namespace unit_schedules
