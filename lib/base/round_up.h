// Rounding of sizes to whole units: cache lines, pages.
#pragma once

#include <cstdint>

namespace weft {

inline constexpr uint64_t kCacheLine = 64;

// Returns the smallest multiple of `unit` that is at least `value`; value + unit must not overflow.
constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace weft
