// Crossover search for all_reduce over messages: up to which size it runs in one round. Tests the evaluation
// of times, the time limit, the agreement of all ranks, cases without a search, and the loss of a rank.
#include <map>
#include <set>
#include <span>

#include "coll/calibration.h"
#include "coll/hierarchical/hierarchical.h"
#include "coll/over_transport.h"
#include "kernels/host_ops.h"
#include "loopback/loopback.h"
#include "shm/backend.h"
#include "support/catch.h"
#include "support/fast_clock.h"
#include "support/links.h"

namespace unit_calibration {

using namespace weft;
using namespace weft::coll;
using namespace weft::test;

namespace {

// A network with known times.
struct Network {
  std::function<uint64_t(bool one_shot, uint64_t bytes)> takes_ns;
  uint64_t elapsed_ns = 0;
  std::map<uint64_t, int> runs;  // of each size

  std::optional<uint64_t> measured(int ranks) {
    std::optional<uint64_t> one_shot;
    elapsed_ns = 0;
    const CrossoverSearch::Run run = [&](bool small, uint64_t bytes, uint64_t* slowest,
                                         uint64_t* elapsed) -> Status {
      WEFT_EXPECT(elapsed_ns < kCalibrationNs);  // otherwise a trial would begin after the time limit
      WEFT_EXPECT(bytes <= largest_tuned(ranks));
      runs[bytes]++;
      *slowest = takes_ns(small, bytes);
      *elapsed = elapsed_ns += *slowest;
      return {};
    };
    WEFT_EXPECT_OK(calibrate(run, ranks, &one_shot));
    return one_shot;
  }
};

// Returns the times of `ranks` on a network where a round costs round_ns, and a KiB that a rank sends kib_ns.
std::function<uint64_t(bool, uint64_t)> network(uint64_t ranks, uint64_t round_ns, uint64_t kib_ns) {
  return [=](bool one_shot, uint64_t bytes) {
    const uint64_t vectors = bytes * (ranks - 1);
    return one_shot ? round_ns + (vectors >> 10) * kib_ns
                    : 2 * round_ns + (2 * vectors / ranks >> 10) * kib_ns;
  };
}

// Leaves before it sends its message of this number. It does so in its next progress call, because send and
// receive may not throw.
class Leaving final : public Transport {
 public:
  Leaving(std::unique_ptr<Transport> inner, int sends) : inner_(std::move(inner)), sends_(sends) {}
  void send(int peer, const MessageTag& tag, const Descriptor& descriptor, const std::byte* data,
            uint64_t size, Message* message) override {
    left_ = left_ || sends_-- == 0;
    if (!left_) inner_->send(peer, tag, descriptor, data, size, message);
  }
  void receive(int peer, const MessageTag& tag, std::byte* data, uint64_t capacity,
               Message* message) override {
    inner_->receive(peer, tag, data, capacity, message);
  }
  bool progress() override {
    if (left_) throw std::runtime_error("left");
    return inner_->progress();
  }
  void cancel(Message* message) override { inner_->cancel(message); }
  bool peek(int peer, uint32_t lane, uint64_t slot, Descriptor* descriptor) override {
    return inner_->peek(peer, lane, slot, descriptor);
  }
  TransportCounters counters() const override { return inner_->counters(); }
  const char* name() const override { return inner_->name(); }

 private:
  const std::unique_ptr<Transport> inner_;
  int sends_;
  bool left_ = false;
};

struct Options {
  uint64_t faster = 1;
  int leaves_at = -1;
  bool crowded = false;
  const HostAllocator* allocator = nullptr;
  int64_t timeout_ms = 20'000;
};

struct Made {
  Status status;
  Forced forced;
  uint64_t sent_bytes = 0;  // by the crossover search
  std::unique_ptr<Collectives> collectives;
};

// Creates a communicator over loopback, with measurements as bootstrap.cpp makes them.
Made make(SocketLinks& links, Measurements* measurements, const std::string& algorithms = "",
          const Options& options = {}) {
  static Log log;
  FastClock clock(options.faster);
  BackendArgs args{links, clock, log, host_ops()};
  args.deadline = Deadline::after(clock, options.timeout_ms * static_cast<int64_t>(options.faster), 0);
  args.measurements = measurements;
  args.crowded = options.crowded;
  if (options.allocator != nullptr) args.allocator = *options.allocator;
  std::unique_ptr<Transport> transport;
  WEFT_EXPECT_OK(loopback::backend().make_transport(args, &transport));
  if (options.leaves_at >= 0) transport = std::make_unique<Leaving>(std::move(transport), options.leaves_at);
  Made made;
  WEFT_EXPECT_OK(parse_forced(algorithms, &made.forced));
  const LaneContext lanes{*transport, host_ops(), links.rank(), links.size(), made.forced};
  made.status = measure_one_shot(lanes, true, args, &made.forced);
  made.sent_bytes = transport->counters().bytes_sent;
  made.collectives =
      over_transport(std::move(transport), links.rank(), links.size(), host_ops(), clock, made.forced);
  return made;
}

// Checks that all ranks have the same thresholds.
void expect_equal(SocketLinks& links, const std::string& mine) {
  std::vector<Bytes> all;
  SystemClock clock;
  WEFT_EXPECT_OK(links.all_gather(std::as_bytes(std::span(mine)), &all, Deadline::after(clock, 20'000, 0)));
  for (const Bytes& bytes : all)
    WEFT_EXPECT(mine == std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// Checks that the communicator's own lanes are unused, and works. Returns the algorithm of 32 KiB.
std::string expect_working(SocketLinks& links, Collectives& collectives) {
  std::unique_ptr<CollectiveLane> lane;
  WEFT_EXPECT_OK(collectives.open_lane({}, &lane));
  SystemClock clock;
  std::string algorithm;
  for (const uint64_t count : {uint64_t{100'000}, uint64_t{1}, uint64_t{8192}}) {
    static thread_local uint64_t slot = 0;
    if (count == 100'000) slot = 0;
    std::vector<int32_t> data(count, links.rank() + 1);
    CollectiveArgs args;
    args.coll = Coll::kAllReduce;
    args.dtype = Dtype::kI32;
    args.op = ReduceOp::kSum;
    args.count = count;
    args.src = args.dst = reinterpret_cast<std::byte*>(data.data());
    lane->start(args, slot++);
    const Deadline deadline = Deadline::after(clock, 20'000, 0);
    for (uint32_t round = 0; lane->poll() != Poll::kFinished; round++) {
      WEFT_EXPECT(!deadline.expired(clock));
      clock.relax(round);
    }
    WEFT_EXPECT_OK(lane->result());
    WEFT_EXPECT(data.back() == links.size() * (links.size() + 1) / 2);
    algorithm = lane->algorithm();
  }
  return algorithm;
}

}  // namespace

TEST_CASE("one_shot is used up to the size that the network's times give") {
  // 1 Gbit/s and 100 us among 8 ranks: one round pays off while 7 vectors take less than a second round and
  // 1.75 vectors.
  Network slow{network(8, 100'000, 8'192)};
  CHECK(slow.measured(8) == 2 << 10);
  Network rounds{network(8, 1'000'000, 82)};
  rounds.takes_ns = network(8, 300'000, 82);
  CHECK(rounds.measured(8) == 256 << 10);  // the largest size that is tried
  Network direct{[](bool one_shot, uint64_t bytes) { return one_shot ? 100 + bytes : 50 + bytes / 2; }};
  CHECK(direct.measured(4) == 2 << 10);
  CHECK(direct.measured(2) == 2 << 10);
  // Two ranks on a slow link: both algorithms send the same, so the table's value is kept where the choice
  // does not matter.
  Network pair{network(2, 10'000, 8'192)};
  CHECK(pair.measured(2) == table_one_shot(2));
  // Short operations cost little.
  CHECK((pair.runs[256 << 10] >= 4 && pair.runs[256 << 10] < pair.runs[64 << 10]));
  CHECK(pair.runs[512 << 10] == 0);

  // Some operations take ten times as long.
  uint64_t number = 0;
  Network noisy{[&, takes = network(4, 50'000, 300)](bool one_shot, uint64_t bytes) {
    return takes(one_shot, bytes) * (++number % 7 == 0 ? 10 : 1);
  }};
  Network quiet{network(4, 50'000, 300)};
  CHECK(quiet.measured(4) == 64 << 10);
  CHECK(noisy.measured(4) == 64 << 10);

  // Half of the short operations wait for the previous one.
  Network queued{[&, takes = network(4, 50'000, 300)](bool one_shot, uint64_t bytes) {
    return takes(one_shot, bytes) + (bytes <= 16 << 10 && ++number % 3 != 0 ? 100'000 : 0);
  }};
  CHECK(queued.measured(4) == 64 << 10);

  // Nearly equal times; random noise must not decide.
  uint64_t random = 1;
  Network even{[&](bool, uint64_t bytes) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return (20'000 + bytes / 10) * (1'000 + (random >> 33) % 10) / 1'000;  // 1 %
  }};
  for (const int ranks : {2, 3, 4, 8, 64}) {
    for (int i = 0; i < 10; i++) CHECK(even.measured(ranks) == table_one_shot(ranks));
  }
}

TEST_CASE("the crossover search ends at its time limit, with the results so far") {
  // Network::measured refuses trials after the time limit.
  for (const uint64_t each_ns : {100'000'000, 20'000'000, 6'000'000}) {
    Network late{[&](bool one_shot, uint64_t) { return one_shot ? each_ns / 2 : each_ns; }};
    INFO(each_ns);
    const std::optional<uint64_t> found = late.measured(2);
    CHECK((!found || *found == table_one_shot(2)));
  }
  // Sizes that would take most of the time are left to the table, so that the others get many trials.
  Network slow{network(4, 100'000, 80'000)};
  CHECK(slow.measured(4) == 2 << 10);
  CHECK(slow.runs[4 << 10] >= 4);
  CHECK(slow.runs[128 << 10] == 0);
  // The number of trials is limited to what is useful.
  Network fast{[](bool, uint64_t) { return uint64_t{10}; }};
  CHECK(fast.measured(2) == table_one_shot(2));
  CHECK(fast.runs[4 << 10] == 24);
  // With many ranks the bytes that a rank may send limit the largest trial; with very many there is none.
  CHECK(largest_tuned(2) == 1 << 20);
  CHECK(largest_tuned(5) == 512 << 10);
  CHECK(largest_tuned(1000) * 999 <= 2 << 20);
  CHECK(largest_tuned(100'000) == 0);
}

TEST_CASE("all ranks find the same crossover, whatever their clocks, and then work") {
  for (const int ranks : {2, 3}) {
    INFO(ranks);
    CHECK(failure_text(run_linked_threads(ranks, [](SocketLinks& links) {
            Measurements measurements;
            Options options;
            options.faster = static_cast<uint64_t>(1 + 2 * links.rank());
            const Made made = make(links, &measurements, "", options);
            WEFT_EXPECT_OK(made.status);
            WEFT_EXPECT(made.sent_bytes > 0);
            WEFT_EXPECT(made.collectives->counters().bytes_sent == 0);
            WEFT_EXPECT(made.collectives->counters().bytes_received == 0);
            expect_equal(links, made.collectives->transports());
            expect_working(links, *made.collectives);
            WEFT_EXPECT(made.collectives->counters().bytes_sent > 0);
          })) == "");
  }
}

TEST_CASE("the crossover is measured once for the same ranks, and rank 0's result is used") {
  CHECK(failure_text(run_linked_threads(2, [](SocketLinks& links) {
          Measurements kept;
          const Made first = make(links, &kept);
          WEFT_EXPECT_OK(first.status);
          const Made second = make(links, &kept);
          WEFT_EXPECT_OK(second.status);
          WEFT_EXPECT((first.sent_bytes > 0 && second.sent_bytes == 0));
          WEFT_EXPECT(second.forced.one_shot == first.forced.one_shot);
          expect_working(links, *second.collectives);
          // If one rank has no measurements, all ranks measure again.
          Measurements nothing;
          const Made third = make(links, links.rank() == 1 ? &nothing : &kept);
          WEFT_EXPECT((third.status.ok() && third.sent_bytes > 0));
          expect_equal(links, third.collectives->transports());
          WEFT_EXPECT(make(links, links.rank() == 1 ? &nothing : &kept).sent_bytes == 0);
        })) == "");
}

TEST_CASE("the crossover search is skipped if it is switched off, useless, or would be unreliable") {
  CHECK(failure_text(run_linked_threads(2, [](SocketLinks& links) {
          Measurements measurements;
          for (const char* algorithms : {"off", "all_reduce:0-16K:one_shot,16K-inf:direct",
                                         "all_reduce:direct", "off;all_reduce:0-1M:one_shot"}) {
            const Made made = make(links, &measurements, algorithms);
            WEFT_EXPECT_OK(made.status);
            WEFT_EXPECT((made.sent_bytes == 0 && !made.forced.one_shot));
            const std::string ran = expect_working(links, *made.collectives);
            const bool direct = std::string_view(algorithms).find("off") != 0;
            WEFT_EXPECT(ran == (direct ? "direct" : "one_shot"));
          }
          WEFT_EXPECT(make(links, &measurements, "broadcast:flat").sent_bytes > 0);
          // An algorithm for some sizes leaves the others to be measured.
          Measurements again;
          WEFT_EXPECT(make(links, &again, "all_reduce:1M-inf:ring").sent_bytes > 0);
          WEFT_EXPECT(make(links, nullptr).sent_bytes == 0);
          // One rank that shares its core is enough.
          Options crowded;
          crowded.crowded = links.rank() == 1;
          Measurements others;
          const Made made = make(links, &others, "", crowded);
          WEFT_EXPECT((made.status.ok() && made.sent_bytes == 0 && !made.forced.one_shot));
        })) == "");
}

TEST_CASE("if one rank has no memory for the crossover search, all ranks use the table") {
  HostAllocator empty;
  empty.allocate = [](void*, uint64_t, uint64_t, int32_t) -> void* { return nullptr; };
  empty.release = [](void*, void*, uint64_t, int32_t) {};
  CHECK(failure_text(run_linked_threads(3, [&](SocketLinks& links) {
          Measurements measurements;
          Options options;
          if (links.rank() == 2) options.allocator = &empty;
          const Made made = make(links, &measurements, "", options);
          WEFT_EXPECT_OK(made.status);
          WEFT_EXPECT((made.sent_bytes == 0 && !made.forced.one_shot));
          expect_working(links, *made.collectives);
        })) == "");
}

TEST_CASE("a rank that leaves or stops during the crossover search is named by the deadline") {
  for (const int sends : {0, 1, 4}) {  // few, so that measuring lasts as long even on a slow machine
    const std::vector<std::string> results = run_linked_threads(3, [&](SocketLinks& links) {
      Measurements measurements;
      Options options;
      options.timeout_ms = 2000;
      if (links.rank() == 1) options.leaves_at = sends;
      const Made made = make(links, &measurements, "", options);
      WEFT_EXPECT(made.status.code() == Code::kTimeout);
      WEFT_EXPECT(made.status.text().find("autotuning of message algorithms") != std::string::npos);
      const std::vector<int>& named = made.status.info().ranks;
      WEFT_EXPECT(std::find(named.begin(), named.end(), 1) != named.end());
      WEFT_EXPECT(!made.forced.one_shot);
    });
    INFO(sends);
    CHECK(results[0] == "");
    CHECK(results[1].find("left") != std::string::npos);
    CHECK(results[2] == "");
  }
}

TEST_CASE("between hosts the ranks of one index measure, and all use the result of rank 0's group") {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 0}}) {
    CHECK(failure_text(run_linked_threads(static_cast<int>(hosts.size()), [&](SocketLinks& links) {
            static Log log;
            FastClock clock(0);  // otherwise a slow machine's time limit is over before anything is known
            Backend across = loopback::backend();
            across.preference = 0;
            Backend composed{};
            composed.name = "shm+loopback";
            composed.local = &shm::backend();
            composed.across = &across;
            BackendArgs args{links, clock, log, host_ops()};
            args.arena_limit_bytes = 16 << 20;
            args.deadline = Deadline::after(clock, 20'000, 0);
            LabelledHosts fds(links, hosts, links.rank());
            args.fds = &fds;
            Measurements measurements("off");
            args.measurements = &measurements;
            std::string once;
            for (int i = 0; i < 2; i++) {
              std::unique_ptr<Collectives> collectives;
              WEFT_EXPECT_OK(make_hierarchical(composed, args, {}, &collectives));
              const std::string found = collectives->transports();
              WEFT_EXPECT(found.find("one_shot up to") < found.find("(measured); in hosts: "));
              WEFT_EXPECT((i == 0 || found.substr(0, found.find(" in ")) == once));
              once = found.substr(0, found.find(" in "));
              expect_equal(links, once);
              WEFT_EXPECT(collectives->counters().bytes_sent == 0);
              expect_working(links, *collectives);
            }
          })) == "");
  }
}

}  // namespace unit_calibration
