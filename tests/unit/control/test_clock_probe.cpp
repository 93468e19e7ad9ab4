// comm/clock_probe: ranks whose clocks differ learn by how much.
#include "comm/clock_probe.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "shm/backend.h"
#include "support/catch.h"
#include "support/ranks.h"

namespace unit_clock_probe {

using namespace weft;
using namespace weft::test;

namespace {

// The system clock, plus a shift that the test sets.
class ShiftedClock final : public Clock {
 public:
  uint64_t now_ns() override { return clock_.now_ns() + shift_ns; }
  void relax(uint32_t round) override { clock_.relax(round); }
  void sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t until_ns) override {
    clock_.sleep(word, expected, until_ns == UINT64_MAX ? until_ns : until_ns - shift_ns);
  }
  void wake_all(const std::atomic<uint32_t>& word) override { clock_.wake_all(word); }
  std::atomic<uint64_t> shift_ns{0};

 private:
  SystemClock clock_;
};

ClockOffset measured(Rank& self) {
  const std::vector<TraceComm> comms = self.comm->context().trace_comms().list();
  self.expect(comms.size() == 1 && comms[0].rank == self.rank && comms[0].size == self.size, "it is known");
  self.expect(comms.at(0).clock.has_value(), "it was measured");
  return comms[0].clock.value_or(ClockOffset());
}

}  // namespace

TEST_CASE("each rank finds the offset of its clock to rank 0's, within the error that it reports") {
  const auto clock = std::make_shared<ShiftedClock>();
  RanksOptions options;
  options.backend = &shm::backend();
  options.clock = clock;
  const auto body = [&](Rank& self) {
    self.expect(self.rank > 0 || measured(self).offset_ns == 0, "rank 0 has no offset to itself");
    constexpr int64_t kShiftNs = 3'000'000'000;
    clock->shift_ns = static_cast<uint64_t>(self.rank * kShiftNs);
    CollectiveArgs barrier;
    barrier.coll = Coll::kBarrier;
    self.expect(self.run(barrier), "all clocks are set");
    self.comm->context().measure_clocks(true);
    const ClockOffset found = measured(self);
    const int64_t wrong = found.offset_ns + self.rank * kShiftNs;
    self.expect(static_cast<uint64_t>(std::abs(wrong)) <= found.error_ns, "off by " + std::to_string(wrong));
    self.expect(found.error_ns < 1'000'000'000, "the round trip is short");
    self.expect(self.run(barrier), "rank 0 leaves last");
  };
  check(run_processes(3, body, options));
}

TEST_CASE("an answer may come before the call that sends the question returns") {
  const auto body = [](Rank& self) {
    CollectiveArgs barrier;
    barrier.coll = Coll::kBarrier;
    self.comm->context().measure_clocks(true);
    const ClockOffset found = measured(self);
    self.expect(static_cast<uint64_t>(std::abs(found.offset_ns)) <= found.error_ns, "one clock");
    self.expect(self.run(barrier), "rank 0 leaves last");
  };
  check(run_threads(3, body));  // over backends/loopback, which delivers at once
}

TEST_CASE("a rank whose rank 0 has left does not wait for its clock") {
  RanksOptions options;
  options.backend = &shm::backend();
  const auto body = [](Rank& self) {
    if (self.rank == 0) return;
    Clock& clock = self.comm->context().clock();
    self.comm->context().engine().wait([&] { return self.comm->gone(0); }, Deadline::after(clock, 60'000, 0));
    self.expect(self.comm->gone(0), "rank 0 has left");
    const uint64_t began_ns = clock.now_ns();
    self.comm->clock_probe().ask();
    self.comm->clock_probe().wait(Deadline::after(clock, 60'000, 0));
    self.expect(clock.now_ns() - began_ns < 30'000'000'000, "no wait");
  };
  check(run_processes(2, body, options));
}

}  // namespace unit_clock_probe
