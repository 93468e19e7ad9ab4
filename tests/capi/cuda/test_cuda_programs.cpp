// Compares random programs of device reducers with their twins in host memory, over backends of host memory.
#include "capi/programs.h"
#include "support/seed.h"

namespace capi_cuda_programs {

using namespace weft_test;

TEST_CASE("random programs give the bits of their twins in host memory") {
  for (uint64_t round = 0; round < 24; round++) {
    const uint64_t seed = weft::test::base_seed() + round;
    Random random(seed);
    Program program = draw(random);
    program.caller = round % 4 == 3;
    const uint64_t common_seed = random();
    const FakeCuda fake(2, seed, 1 + static_cast<int>(random() % 80));
    RankFailures failures;
    const char* const backend = kBackends[round % 2];
    INFO(text_of(program, seed) << ", " << backend);
    failures.expect(run(backend, program.ranks, kModes[program.caller ? 1 : 0], [&](Rank& r) {
      failures.expect(run_program(r, mixed_tensors(), program, common_seed));
    }));
    failures.check();
    if (!failures.empty()) return;
  }
}

}  // namespace capi_cuda_programs
