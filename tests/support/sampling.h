// How much of a large set of test cases runs: a sample in `make test`, everything in `make test-all`, and
// less under a sanitizer or an emulator, which make everything about ten times slower.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "support/sanitized.h"

namespace weft::test {

// Returns one of its arguments: a number of cases, or of which one runs.
inline uint64_t sampling(uint64_t all, uint64_t sampled, uint64_t slow) {
  if (kSlow) return slow;
  return std::getenv("WEFT_TEST_ALL") != nullptr ? all : sampled;
}

}  // namespace weft::test
