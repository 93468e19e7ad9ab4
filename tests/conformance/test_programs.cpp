// Random programs under random schedules, with and without the death of a rank. A run is a function of the
// seed, so a failure can be repeated.
#include "base/text.h"
#include "cases.h"
#include "support/catch.h"
#include "support/sampling.h"
#include "support/seed.h"
#include "support/simulation.h"

using namespace weft;
using namespace weft::test;

namespace {

const uint64_t kPrograms = sampling(300, 60, 30);

std::vector<Case> random_program(int size, Random& random) {
  std::vector<Case> program(3 + random.below(8));
  for (Case& c : program) {
    c.coll = random.chance(4) ? static_cast<Coll>(static_cast<uint64_t>(Coll::kAllGatherV) + random.below(5))
                              : static_cast<Coll>(1 + random.below(static_cast<uint64_t>(Coll::kBarrier)));
    c.dtype = static_cast<Dtype>(1 + random.below(kDtypeCount));
    const std::vector<ReduceOp> ops = ops_of(c.coll, c.dtype);
    c.op = ops[random.below(ops.size())];
    c.count = random.chance(4) ? 10'000 + random.below(30'000) : random.below(200);
    c.in_place = may_be_in_place(c.coll) && random.chance(2);
    prepare(c, size, random);
  }
  return program;
}

}  // namespace

TEST_CASE("random programs give correct results under random schedules") {
  for (uint64_t i = 0; i < kPrograms; i++) {
    const uint64_t seed = base_seed() * 1'000'003 + i;
    Random random(seed);
    const int size = 2 + static_cast<int>(random.below(4));
    const std::vector<Case> program = random_program(size, random);
    check(Simulation(seed, size)
              .run([&](Rank& self) {
                for (const Case& c : program) execute(c, self);
              })
              .failures);
  }
}

TEST_CASE("random programs in which a rank dies give correct results until they name it") {
  for (uint64_t i = 0; i < kPrograms; i++) {
    const uint64_t seed = base_seed() * 1'000'033 + i;
    Random random(seed);
    const int size = 2 + static_cast<int>(random.below(4));
    const int victim = static_cast<int>(random.below(static_cast<uint64_t>(size)));
    const uint64_t when = random.below(400'000);
    const std::vector<Case> program = random_program(size, random);
    Simulation simulation(seed, size);
    const SimulationReport report = simulation.run([&](Rank& self) {
      if (self.rank == victim) simulation.kill(victim, when);
      Status status;
      for (const Case& c : program) {
        status = attempt(c, self);
        if (!status.ok()) break;
      }
      if (status.ok()) return;
      self.expect(status.code() == Code::kPeerFailed, "code: " + status.text());
      self.expect(status.info().ranks == std::vector<int>{victim},
                  cat("not rank ", victim, ": ", status.text()));
    });
    check(report.failures);
  }
}
