// Sizes in whole units: cache lines, pages.
#pragma once

#include <cstdint>

namespace weft {

inline constexpr uint64_t kCacheLine = 64;

// The least multiple of `unit` that is not below `value`; value + unit does not overflow.
constexpr uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace weft
