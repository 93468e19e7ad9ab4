// Stamps number all steps of a reducer, and windows of local steps, in 32 bits. 0 is no stamp. After
// UINT32_MAX comes 1 again, after 2^32 steps: seven weeks of steps of a millisecond.
//
// Stamps that are less than 2^31 steps apart compare by their difference. A mark that a step has left
// somewhere may be older, and would then equal the stamp of a new step. So the marks of each half of the
// numbers are forgotten when the stamps enter that half.
#pragma once

#include <cstdint>

namespace weft {

inline uint32_t stamp_after(uint32_t stamp) {
  return stamp == UINT32_MAX ? 1 : stamp + 1;
}

// True if the half of `stamp` begins with it.
inline bool begins_half(uint32_t stamp) {
  return stamp == 1 || stamp == uint32_t{1} << 31;
}

// Returns the mark, or 0 if it lies in the half of `stamp`, which has begun.
inline uint32_t kept_mark(uint32_t mark, uint32_t stamp) {
  return mark >> 31 == stamp >> 31 ? 0 : mark;
}

}  // namespace weft
