// The sizes at which shm changes its path on private memory: settings, the evaluation of measured times, the
// time limit, the agreement of all ranks, and that no bit of a result changes.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <span>

#include "shm/calibration.h"
#include "shm/lane.h"
#include "shm_rank.h"
#include "support/catch.h"
#include "support/fast_clock.h"
#include "support/kernel.h"
#include "support/sanitized.h"

namespace unit_shm_thresholds {

using namespace weft;
using namespace weft::shm;
using namespace weft::test;

namespace {

// A machine with known times.
class Machine final : public Tuner {
 public:
  std::function<uint64_t(Route, uint64_t bytes)> takes_ns;
  uint64_t elapsed_ns = 0;
  std::map<Route, int> runs;

  Status run(Route route, uint64_t bytes, uint64_t* slowest, uint64_t* elapsed) override {
    WEFT_EXPECT(elapsed_ns < kCalibrationNs);  // no trial begins after the time limit
    WEFT_EXPECT(bytes <= largest_tuned(true));
    runs[route]++;
    *slowest = takes_ns(route, bytes);
    elapsed_ns += *slowest;
    *elapsed = elapsed_ns;
    return {};
  }
};

// Returns the time of a path: a fixed part, and a part for each KiB.
uint64_t line(uint64_t start_ns, uint64_t kib_ns, uint64_t bytes) {
  return start_ns + kib_ns * (bytes >> 10);
}

Thresholds measured(Machine& machine, bool one_shot = true, bool pull = true) {
  Thresholds thresholds = table_thresholds(2);
  WEFT_EXPECT_OK(calibrate(machine, one_shot, pull, &thresholds));
  return thresholds;
}

// Memory for trials; it is allocated once for each measurement.
struct TunerMemory {
  int taken = 0;
  HostAllocator allocator() {
    HostAllocator counted;
    counted.user_data = this;
    counted.allocate = [](void* self, uint64_t size, uint64_t alignment, int32_t) {
      static_cast<TunerMemory*>(self)->taken++;
      return std::aligned_alloc(alignment, size);
    };
    counted.release = [](void*, void* block, uint64_t, int32_t) { std::free(block); };
    return counted;
  }
};

struct CreatedGroup {
  std::shared_ptr<Group> group;
  int measurements = 0;
  Status status;
};

Log& quiet_log() {
  static Log log;
  return log;
}

CreatedGroup create_group(SocketLinks& links, Measurements& measurements, uint64_t faster = 1,
                          const HostAllocator* allocator = nullptr, int64_t timeout_ms = 20'000) {
  // They outlive the group.
  static std::vector<std::unique_ptr<FastClock>> clocks;
  static std::mutex mutex;
  FastClock* clock = nullptr;
  {
    const std::lock_guard lock(mutex);
    clock = clocks.emplace_back(std::make_unique<FastClock>(faster)).get();
  }
  const auto timeout = timeout_ms * static_cast<int64_t>(std::max<uint64_t>(faster, 1));
  BackendArgs args{links, *clock, quiet_log(), host_ops(), 16 << 20, Deadline::after(*clock, timeout, 0),
                   &links};
  TunerMemory memory;
  args.measurements = &measurements;
  args.allocator = allocator != nullptr ? *allocator : memory.allocator();
  CreatedGroup made;
  made.status = make_group(args, &made.group);
  made.measurements = memory.taken;
  return made;
}

// Checks that all ranks have the same thresholds.
void expect_equal(SocketLinks& links, const Thresholds& thresholds) {
  std::vector<Bytes> all;
  SystemClock clock;
  WEFT_EXPECT_OK(
      links.all_gather(std::as_bytes(std::span(&thresholds, 1)), &all, Deadline::after(clock, 20'000, 0)));
  for (const Bytes& bytes : all) {
    Thresholds theirs;
    WEFT_EXPECT(bytes.size() == sizeof theirs);
    std::memcpy(static_cast<void*>(&theirs), bytes.data(), sizeof theirs);
    WEFT_EXPECT(theirs == thresholds);
  }
}

// Checks that the measured lane is unused: the first operations of the communicator run on it.
void expect_working(SocketLinks& links, const std::shared_ptr<Group>& group) {
  GroupLane lane(group, 0);
  SystemClock clock;
  for (uint64_t slot = 0; slot < 3; slot++) {
    std::vector<int32_t> data(100'000, links.rank() + 1);
    CollectiveArgs args;
    args.coll = Coll::kAllReduce;
    args.dtype = Dtype::kI32;
    args.op = ReduceOp::kSum;
    args.count = data.size();
    args.src = args.dst = reinterpret_cast<std::byte*>(data.data());
    lane.start(args, slot);
    const Deadline deadline = Deadline::after(clock, 20'000, 0);
    for (uint32_t round = 0; lane.poll() != Poll::kFinished; round++) {
      WEFT_EXPECT(!deadline.expired(clock));
      clock.relax(round);
    }
    WEFT_EXPECT_OK(lane.result());
    WEFT_EXPECT(data.back() == links.size() * (links.size() + 1) / 2);
  }
}

}  // namespace

TEST_CASE("shm thresholds are parsed, and errors are named") {
  WantedThresholds wanted;
  CHECK(parse_thresholds("", &wanted).ok());
  CHECK((wanted.measure && !wanted.one_shot && !wanted.pull));
  CHECK(parse_thresholds("off", &wanted).ok());
  CHECK((!wanted.measure && !wanted.one_shot && !wanted.pull));
  CHECK(parse_thresholds("one-shot=64K,pull=never", &wanted).ok());
  CHECK((wanted.measure && wanted.one_shot == 64 << 10 && wanted.pull == kNever));
  CHECK(parse_thresholds("off,pull=1M", &wanted).ok());
  CHECK((!wanted.measure && !wanted.one_shot && wanted.pull == 1 << 20));
  CHECK(parse_thresholds("one-shot=256K", &wanted).ok());
  CHECK(parse_thresholds("one-shot=0,pull=100", &wanted).ok());
  CHECK((wanted.one_shot == 0 && wanted.pull == 100));
  for (const char* bad : {"on", "one-shot", "one-shot=", "one-shot=257K", "one-shot=1T", "one-shot=never",
                          "pull=-1", "pull=99999999999999999999", "pull=18446744073709551615",
                          "pull=9999999999G", "pull=1M one-shot=1K", "off,,off", "PULL=1M", "two-level=4M"}) {
    const Status status = parse_thresholds(bad, &wanted);
    INFO(bad << ": " << status.text());
    CHECK(status.code() == Code::kArg);
    CHECK(status.text().find("WEFT_SHM_THRESHOLDS") != std::string::npos);
  }
  CHECK(parse_thresholds(std::string(10'000, 'x'), &wanted).text().size() < 300);
}

TEST_CASE("shm thresholds follow the machine's times") {
  Machine machine;
  // One-shot is faster up to 100 KiB, pulling from 1.5 MiB.
  const auto takes = [](Route route, uint64_t bytes) {
    if (route == Route::kOneShot) return line(300, 40, bytes);
    return route == Route::kTwoShot ? line(1'300, 30, bytes) : line(1'300 + 1536 * 10, 20, bytes);
  };
  machine.takes_ns = takes;
  Thresholds thresholds = measured(machine);
  CHECK(thresholds.one_shot == 64 << 10);
  CHECK(thresholds.pull == 2 << 20);
  CHECK(thresholds.origin == Thresholds::Origin::kMeasured);
  CHECK(text(thresholds) == "one-shot up to 64 KiB, two-shot, from 2 MiB on pulled (measured)");

  // Some operations take ten times as long.
  Machine noisy;
  uint64_t number = 0;
  noisy.takes_ns = [&](Route route, uint64_t bytes) {
    return takes(route, bytes) * (++number % 7 == 0 ? 10 : 1);
  };
  CHECK(measured(noisy) == thresholds);

  // One size that is always wrong only moves thresholds next to it.
  Machine wrong;
  wrong.takes_ns = [&](Route route, uint64_t bytes) {
    return takes(route, bytes) + (route == Route::kOneShot && bytes == 16 << 10 ? 400 : 0);
  };
  CHECK(measured(wrong) == thresholds);

  Machine slow_kernel;
  slow_kernel.takes_ns = [](Route route, uint64_t bytes) {
    return route == Route::kPulled ? line(5'000, 100, bytes) : line(100, 30, bytes);
  };
  thresholds = measured(slow_kernel);
  CHECK(thresholds.pull == kNever);
  CHECK(text(thresholds).find("pulled") == std::string::npos);

  Machine many_ranks;
  many_ranks.takes_ns = [](Route route, uint64_t bytes) {
    return route == Route::kOneShot ? line(100, 900, bytes) : line(2'000, 20, bytes);
  };
  CHECK(measured(many_ranks).one_shot == 2 << 10);

  // Where the paths hardly differ, the result does not vary.
  Machine even;
  uint64_t random = 1;
  even.takes_ns = [&](Route route, uint64_t bytes) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const uint64_t noise = 1'000 + (random >> 33) % 10;  // 1 %
    return line(500, route == Route::kOneShot && bytes > 16 << 10 ? 60 : 40, bytes) * noise / 1'000;
  };
  for (int i = 0; i < 20; i++) {
    even.elapsed_ns = 0;
    CHECK(measured(even, true, false).one_shot == 1 << 10);
  }

  // Given thresholds are not tried.
  Machine half;
  half.takes_ns = takes;
  const Thresholds only_pull = measured(half, false, true);
  CHECK((only_pull.one_shot == table_thresholds(2).one_shot && only_pull.pull == 2 << 20));
  CHECK(half.runs[Route::kOneShot] == 0);
  Machine none;
  CHECK(measured(none, false, false) == table_thresholds(2));
}

TEST_CASE("measuring shm thresholds ends at its time limit, with the results so far") {
  // Machine::run refuses trials after the time limit. The last trial may take long.
  for (const uint64_t each_ns : {100'000'000, 20'000'000, 5'000'000, 2'000'000}) {
    Machine machine;
    machine.takes_ns = [&](Route route, uint64_t) {
      return route == Route::kOneShot ? each_ns / 2 : each_ns;
    };
    const Thresholds thresholds = measured(machine);
    INFO(each_ns);
    CHECK(thresholds == table_thresholds(2));  // no size was measured twice
  }
  // Short operations are measured, long ones are not.
  Machine machine;
  machine.takes_ns = [](Route, uint64_t bytes) {
    return bytes > 256 << 10 ? uint64_t{10'000'000} : 100 + bytes;
  };
  const Thresholds thresholds = measured(machine, true, true);
  CHECK(thresholds.pull == table_thresholds(2).pull);
  CHECK(machine.elapsed_ns < kCalibrationNs + 10'000'001);
  // Each size is measured as often as time allows, short ones more often.
  Machine quick;
  quick.takes_ns = [](Route, uint64_t bytes) { return bytes / 16; };
  measured(quick, true, true);
  CHECK(quick.runs[Route::kOneShot] == 24 * 8);
  CHECK(quick.runs[Route::kPulled] == 4 * 4);
}

TEST_CASE("all ranks find the same shm thresholds, whatever their clocks, and then work") {
  for (const int ranks : {2, 3}) {
    const LinkedBody body = [](SocketLinks& links) {
      Measurements measurements;
      const CreatedGroup made =
          create_group(links, measurements, static_cast<uint64_t>(1 + 2 * links.rank()));
      WEFT_EXPECT_OK(made.status);
      expect_equal(links, made.group->thresholds());
      WEFT_EXPECT(made.group->moved_bytes() == 0);
      expect_working(links, made.group);
    };
    INFO(ranks);
    CHECK(failure_text(run_linked_threads(ranks, body)) == "");
    if (!kThreadSanitizer) CHECK(failure_text(run_linked_processes(ranks, body)) == "");
  }
}

TEST_CASE("shm thresholds are measured once for the same ranks, and rank 0's results are used") {
  const LinkedBody body = [](SocketLinks& links) {
    Measurements kept;
    const CreatedGroup first = create_group(links, kept);
    WEFT_EXPECT_OK(first.status);
    const CreatedGroup second = create_group(links, kept);
    WEFT_EXPECT_OK(second.status);
    WEFT_EXPECT(first.measurements == 1);
    WEFT_EXPECT(second.measurements == 0);
    WEFT_EXPECT(second.group->thresholds() == first.group->thresholds());
    expect_working(links, second.group);
    // If one rank has no measurements, all ranks measure again.
    Measurements nothing;
    const CreatedGroup third = create_group(links, links.rank() == 1 ? nothing : kept);
    WEFT_EXPECT_OK(third.status);
    WEFT_EXPECT(third.measurements == 1);
    expect_equal(links, third.group->thresholds());
    const CreatedGroup fourth = create_group(links, links.rank() == 1 ? nothing : kept);
    WEFT_EXPECT_OK(fourth.status);
    WEFT_EXPECT(fourth.measurements == 0);
    expect_equal(links, fourth.group->thresholds());
  };
  CHECK(failure_text(run_linked_threads(2, body)) == "");
}

TEST_CASE("shm measures nothing if it is switched off, or all thresholds are given") {
  CHECK(failure_text(run_linked_threads(2, [](SocketLinks& links) {
          for (const char* setting : {"off", "one-shot=16K,pull=2M", "off,pull=64K"}) {
            Measurements measurements(setting);
            const CreatedGroup made = create_group(links, measurements);
            WEFT_EXPECT_OK(made.status);
            WEFT_EXPECT(made.measurements == 0);
            WantedThresholds wanted;
            WEFT_EXPECT_OK(parse_thresholds(setting, &wanted));
            const Thresholds table = table_thresholds(2);
            WEFT_EXPECT(made.group->thresholds().one_shot == wanted.one_shot.value_or(table.one_shot));
            WEFT_EXPECT(made.group->thresholds().pull == wanted.pull.value_or(table.pull));
            WEFT_EXPECT(made.group->thresholds().origin ==
                        (wanted.pull ? Thresholds::Origin::kGiven : Thresholds::Origin::kTable));
          }
          Measurements wrong("one-shot=1G");
          const CreatedGroup refused = create_group(links, wrong);
          WEFT_EXPECT(refused.status.code() == Code::kArg);
          WEFT_EXPECT(refused.status.text().find("one-shot=1G") != std::string::npos);
        })) == "");
}

TEST_CASE("shm thresholds select the path, and no bit of a sum depends on them") {
  const LinkedBody body = [](SocketLinks& links) {
    std::map<uint64_t, std::vector<float>> expected;
    std::set<std::string> paths;
    for (const char* setting :
         {"off", "one-shot=4K,pull=never", "one-shot=0,pull=64K", "one-shot=32K,pull=1"}) {
      ShmRank rank(links, 8 << 20, setting);
      WantedThresholds wanted;
      WEFT_EXPECT_OK(parse_thresholds(setting, &wanted));
      for (const uint64_t count : {1'000, 5'000, 30'000, 100'001}) {
        std::vector<float> data(count);
        for (uint64_t i = 0; i < count; i++) {
          data[i] = static_cast<float>(i % 977) * (links.rank() == 1 ? -1e6f : 1e-3f) + 0.1f;
        }
        CollectiveArgs args;
        args.coll = Coll::kAllReduce;
        args.dtype = Dtype::kF32;
        args.op = ReduceOp::kSum;
        args.count = count;
        args.src = args.dst = reinterpret_cast<std::byte*>(data.data());
        WEFT_EXPECT_OK(rank.call(args));
        const std::string path = rank.lane().algorithm();
        paths.insert(path);
        const uint64_t bytes = count * sizeof(float);
        const Thresholds table = table_thresholds(links.size());
        WEFT_EXPECT(path == (bytes <= wanted.one_shot.value_or(table.one_shot) ? "one-shot"
                             : bytes >= wanted.pull.value_or(table.pull)       ? "owner-pulled"
                                                                               : "two-shot"));
        std::vector<float>& first = expected.emplace(count, data).first->second;
        WEFT_EXPECT(std::memcmp(first.data(), data.data(), bytes) == 0);
      }
    }
    WEFT_EXPECT(paths.size() == 3);
  };
  CHECK(failure_text(run_linked_threads(3, body)) == "");
  if (!has_process_vm_readv()) WEFT_SKIP("the kernel refuses process_vm_readv");
  if (!kThreadSanitizer) CHECK(failure_text(run_linked_processes(3, body)) == "");
}

TEST_CASE("if one rank cannot measure, all ranks use the table") {
  HostAllocator empty;
  empty.allocate = [](void*, uint64_t, uint64_t, int32_t) -> void* { return nullptr; };
  empty.release = [](void*, void*, uint64_t, int32_t) {};
  for (const int who : {0, 2}) {
    CHECK(failure_text(run_linked_threads(3, [&](SocketLinks& links) {
            Measurements measurements;
            const CreatedGroup made =
                create_group(links, measurements, 1, links.rank() == who ? &empty : nullptr);
            WEFT_EXPECT_OK(made.status);
            // Rank threads first examine the cost of pulling.
            WEFT_EXPECT(made.group->thresholds().one_shot == table_thresholds(3).one_shot);
            expect_equal(links, made.group->thresholds());
            expect_working(links, made.group);
          })) == "");
  }
}

TEST_CASE("a rank that is killed while shm is measured is named by the deadline") {
  if (kThreadSanitizer) WEFT_SKIP("the thread sanitizer does not follow forks");
  HostAllocator deadly;
  deadly.allocate = [](void*, uint64_t, uint64_t, int32_t) -> void* {
    ::raise(SIGKILL);
    return nullptr;
  };
  const std::vector<std::string> results = run_linked_processes(2, [&](SocketLinks& links) {
    Measurements measurements;
    const CreatedGroup made =
        create_group(links, measurements, 1, links.rank() == 1 ? &deadly : nullptr, 2'000);
    WEFT_EXPECT(made.status.code() == Code::kTimeout || made.status.code() == Code::kPeerFailed);
    WEFT_EXPECT(made.status.info().ranks == std::vector<int>{1});
  });
  CHECK(results[0] == "");
  CHECK(results[1] != "");
}

}  // namespace unit_shm_thresholds
