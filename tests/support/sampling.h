// How much of a large set of test cases runs: a sample in `make test`, everything in `make test-all`, and
// less under a sanitizer, which makes everything about ten times slower.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "support/sanitized.h"

namespace weft::test {

// Returns all, sampled or sanitized: a number of cases, or of which one runs.
inline uint64_t sampling(uint64_t all, uint64_t sampled, uint64_t sanitized) {
  if (kSanitized) return sanitized;
  return std::getenv("WEFT_TEST_ALL") != nullptr ? all : sampled;
}

}  // namespace weft::test
