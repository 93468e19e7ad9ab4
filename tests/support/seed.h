// The seed of a test run: Catch2's --rng-seed, so that `test --rng-seed N` repeats a run that failed.
// tests/run.py sets its default, WEFT_TEST_SEED (support/main.cpp).
#pragma once

#include <cstdint>

#include "support/catch.h"

namespace weft::test {

// Returns Catch2's seed; 1 unless the command line or WEFT_TEST_SEED sets one.
inline uint64_t base_seed() {
#if WEFT_CATCH2_V3
  return Catch::getSeed();
#else
  const unsigned int seed = Catch::rngSeed();
  return seed == 0 ? 1 : seed;
#endif
}

}  // namespace weft::test
