#include "kernels/select.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace weft {
namespace {

uint32_t magnitude_of(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
}

// The k-th largest magnitude as bits (a NaN is larger than all), and how many values of just that magnitude
// are among the k largest. By its upper 16 bits first, then by the lower.
struct Threshold {
  uint32_t bits = 0;
  uint64_t equal = 0;

  explicit Threshold(const SelectArgs& args) : equal(args.take) {
    const uint32_t upper = find(args, 0, 16) << 16;
    bits = upper | find(args, upper, 0);
  }

 private:
  // The digit (16 bits at `shift`) of the equal-th largest of those that have the digits `above`; equal
  // becomes its place among those with that digit.
  uint32_t find(const SelectArgs& args, uint32_t above, int shift) {
    uint32_t* const histogram = args.scratch;
    std::fill_n(histogram, kSelectBins, 0);
    for (uint64_t i = 0; i < args.count; i++) {
      const uint32_t magnitude = magnitude_of(args.values[i]);
      if (shift == 0 && (magnitude ^ above) >> 16 != 0) continue;
      histogram[magnitude >> shift & 0xFFFF]++;
    }
    uint32_t digit = kSelectBins - 1;
    while (digit > 0 && histogram[digit] < equal) equal -= histogram[digit--];
    return digit;
  }
};

}  // namespace

void select_largest(const SelectArgs& args) {
  uint64_t used = 0;
  if (args.take > 0) {
    Threshold threshold(args);
    for (uint64_t i = 0; i < args.count && used < args.take; i++) {
      const uint32_t magnitude = magnitude_of(args.values[i]);
      if (magnitude < threshold.bits || (magnitude == threshold.bits && threshold.equal == 0)) continue;
      if (magnitude == threshold.bits) threshold.equal--;
      args.selected[used++] = {static_cast<uint32_t>(i), args.values[i]};
      if (args.residual) args.values[i] = 0;
    }
  }
  for (; used < args.room; used++) args.selected[used] = {kNoPlace, 0};
  if (!args.residual) return;
  // More infinities than are taken have been told of; they are not kept.
  for (uint64_t i = 0; i < args.count; i++)
    args.values[i] = std::isfinite(args.values[i]) ? args.values[i] : 0;
}

}  // namespace weft
