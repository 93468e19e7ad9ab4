// Memory that DeviceOps::select needs, where it is the host's: instead of the select_scratch that a device's
// needs, and less of it. Used by lib/kernels and who calls it.
#pragma once

#include <cstdint>

namespace weft {

// Bins of a histogram, and of one of more values than the other number; values that are looked at first; and
// candidates that there is room for.
inline constexpr uint32_t kSelectHostBins = 2048;
inline constexpr uint32_t kSelectHostManyBins = 65536;
inline constexpr uint64_t kSelectMany = 262144;
inline constexpr uint64_t kSelectSampled = 8192;
constexpr uint64_t select_candidates(uint64_t count, uint64_t take) {
  return count < kSelectSampled ? 0 : 2 * take + count / 64 + kSelectSampled;
}
// SelectArgs::scratch for so many values, or fewer.
constexpr uint64_t select_host_scratch(uint64_t count, uint64_t take) {
  const uint64_t some = kSelectHostBins + 2 * select_candidates(count, take);
  return count < kSelectMany || some > kSelectHostManyBins ? some : kSelectHostManyBins;
}

}  // namespace weft
