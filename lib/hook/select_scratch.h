// Scratch memory of DeviceOps::select on the host. It needs less than a device does (select_scratch). Used by
// lib/kernels and its callers.
#pragma once

#include <cstdint>

namespace weft {

// Histogram bins for up to kSelectMany values, and for more; the number of sampled values; and the capacity
// for candidates.
inline constexpr uint32_t kSelectHostBins = 2048;
inline constexpr uint32_t kSelectHostManyBins = 65536;
inline constexpr uint64_t kSelectMany = 262144;
inline constexpr uint64_t kSelectSampled = 8192;
constexpr uint64_t select_candidates(uint64_t count, uint64_t take) {
  return count < kSelectSampled ? 0 : 2 * take + count / 64 + kSelectSampled;
}
// Entries of SelectArgs::scratch for `count` values or fewer.
constexpr uint64_t select_host_scratch(uint64_t count, uint64_t take) {
  const uint64_t some = kSelectHostBins + 2 * select_candidates(count, take);
  return count < kSelectMany || some > kSelectHostManyBins ? some : kSelectHostManyBins;
}

}  // namespace weft
