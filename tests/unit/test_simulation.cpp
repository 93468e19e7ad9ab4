// tests/support/simulation: runs repeat exactly, differ by seed, and end when ranks are stuck.
#include <cstdlib>
#include <string>

#include "support/catch.h"
#include "support/seed.h"
#include "support/simulation.h"

namespace unit_simulation {

using namespace weft;
using namespace weft::test;

namespace {

// A few all_reduces of different sizes; every rank computes the expected sums.
void reduce_some(Rank& self) {
  for (const uint64_t count : {3u, 20'000u, 1u}) {
    std::vector<int32_t> data(count, self.rank + 1);
    CollectiveArgs args;
    args.coll = Coll::kAllReduce;
    args.dtype = Dtype::kI32;
    args.op = ReduceOp::kSum;
    args.count = count;
    args.src = args.dst = reinterpret_cast<std::byte*>(data.data());
    self.expect(self.run(args), "all_reduce");
    const int32_t sum = self.size * (self.size + 1) / 2;
    self.expect(data == std::vector<int32_t>(count, sum), "sums");
  }
}

CollectiveArgs barrier() {
  return {};
}

}  // namespace

TEST_CASE("random tests draw from the seed of tests/run.py") {
  const char* seed = std::getenv("WEFT_TEST_SEED");
  if (seed == nullptr) WEFT_SKIP("tests/run.py did not start this program");
  CHECK(std::to_string(base_seed()) == seed);
}

TEST_CASE("a simulation is a function of its seed") {
  const uint64_t seed = base_seed();
  const SimulationReport first = Simulation(seed, 4).run(reduce_some);
  const SimulationReport again = Simulation(seed, 4).run(reduce_some);
  const SimulationReport other = Simulation(seed + 1, 4).run(reduce_some);
  check(first.failures);
  CHECK(first.hash == again.hash);
  CHECK(first.switches == again.switches);
  CHECK(first.virtual_ns == again.virtual_ns);
  CHECK(first.hash != other.hash);
}

TEST_CASE("collectives are correct under many schedules") {
  for (uint64_t i = 0; i < 40; i++) {
    check(Simulation(base_seed() + i, 2 + static_cast<int>(i % 4)).run(reduce_some).failures);
  }
}

TEST_CASE("a simulation that is stuck ends and names the seed and the waiting ranks") {
  const SimulationReport report = Simulation(7, 3).run([](Rank& self) {
    if (self.rank == 1) {
      // Waits for a message that no rank sends, without a deadline.
      self.comm->context().engine().wait([&] { return self.comm->failed(); }, Deadline::never());
    }
  });
  REQUIRE(report.failures.size() == 1);
  CHECK(report.failures[0].find("seed 7") != std::string::npos);
  CHECK(report.failures[0].find("rank 1 waits") != std::string::npos);
}

TEST_CASE("whenever a rank dies, the others name it") {
  for (uint64_t i = 0; i < 40; i++) {
    Simulation simulation(base_seed() + i, 3);
    const SimulationReport report = simulation.run([&](Rank& self) {
      if (self.rank == 0) simulation.kill(2, simulation.random().below(100'000));
      Status status;
      while (status.ok()) status = self.run(barrier());
      self.expect(status.code() == Code::kPeerFailed, "code: " + status.text());
      self.expect(status.info().ranks == std::vector<int>{2}, "ranks: " + status.text());
    });
    check(report.failures);
  }
}

TEST_CASE(
    "whenever a rank is stopped, the others report it as lost, and it gets that error when it continues") {
  SimulationOptions options;
  options.comm.op_timeout_ms = 300'000;
  for (uint64_t i = 0; i < 40; i++) {
    Simulation simulation(base_seed() + i, 3, options);
    const SimulationReport report = simulation.run([&](Rank& self) {
      if (self.rank == 0) simulation.stop(2, simulation.random().below(100'000));
      Status status;
      while (status.ok()) status = self.run(barrier());
      self.expect(status.code() == Code::kPeerFailed, "code: " + status.text());
      self.expect(status.info().ranks == std::vector<int>{2}, "ranks: " + status.text());
      const Evidence evidence = status.info().evidence;
      self.expect(evidence == (self.rank == 2 ? Evidence::kConnection : Evidence::kHeartbeat) ||
                      evidence == Evidence::kReport,
                  "evidence: " + status.text());
    });
    check(report.failures);
  }
}

TEST_CASE("deadlines pass in virtual time") {
  SimulationOptions options;
  options.comm.op_timeout_ms = 100'000;
  const SimulationReport report = Simulation(base_seed(), 2, options).run([](Rank& self) {
    if (self.rank == 1) {
      self.comm->context().engine().wait([&] { return self.comm->failed(); }, Deadline::never());
      return;
    }
    const Status status = self.run(barrier());
    self.expect(status.code() == Code::kTimeout, status.text());
    self.expect(status.info().ranks == std::vector<int>{1}, "names the absent: " + status.text());
  });
  check(report.failures);
  CHECK(report.virtual_ns > uint64_t{100} * 1'000'000'000);
}

}  // namespace unit_simulation
