// The body of weft_select. Its host counterpart is lib/kernels/select.cpp. It is launched once for each of
// its passes, in order. The smallest magnitude that is taken is found digit by digit, 16 bits each. Then
// every range of values counts its taken values, and writes them behind those of the ranges before it.
#pragma once

#include "kernels/cuda/block.h"

namespace weft::cuda {

struct SelectShared {
  uint32_t greater[kKernelThreads];
  uint32_t equal[kKernelThreads];
};

// The layout of scratch.
struct SelectScratch {
  uint32_t* upper;  // number of values with each digit
  uint32_t* lower;
  uint32_t* found;    // upper digit, lower digit, taken values of exactly that magnitude, values above it
  uint32_t* greater;  // of each range: values above the magnitude, and equal to it; then sums of those before
  uint32_t* equal;
};
WEFT_KERNEL_CODE uint64_t select_ranges(const SelectArgs& args) {
  return (args.count + kSelectRange - 1) / kSelectRange;
}
WEFT_KERNEL_CODE SelectScratch scratch_of(const SelectArgs& args) {
  SelectScratch s;
  s.upper = args.scratch;
  s.lower = s.upper + kSelectBins;
  s.found = s.lower + kSelectBins;
  s.greater = s.found + 8;
  s.equal = s.greater + select_ranges(args);
  return s;
}

WEFT_KERNEL_CODE uint32_t magnitude_bits(float value) {
  return bits_as<uint32_t>(value) & 0x7FFFFFFFu;
}

// Number of consecutive values of a range that one thread handles.
constexpr uint64_t kSelectRun = kSelectRange / kKernelThreads;
template <class Each>
WEFT_KERNEL_CODE void each_of_run(const Block& block, const SelectArgs& args, uint32_t t, Each&& each) {
  const uint64_t begin = block.index * kSelectRange + t * kSelectRun;
  for (uint64_t i = begin; i < begin + kSelectRun && i < args.count; i++)
    each(i, magnitude_bits(args.values[i]));
}
// Visits the values of the range in another order: neighbouring threads read neighbouring values.
template <class Each>
WEFT_KERNEL_CODE void each_of_range(const Block& block, const SelectArgs& args, uint32_t t, Each&& each) {
  const uint64_t begin = block.index * kSelectRange;
  for (uint64_t i = begin + t; i < begin + kSelectRange && i < args.count; i += kKernelThreads)
    each(magnitude_bits(args.values[i]));
}

WEFT_KERNEL_CODE void clear_bins(const Block& block, const SelectArgs& args) {
  const SelectScratch s = scratch_of(args);
  block.each([&](uint32_t t) {
    const uint64_t at = block.index * kKernelThreads + t;
    if (at < 2 * uint64_t{kSelectBins}) s.upper[at] = 0;
  });
}

WEFT_KERNEL_CODE void count_digits(const Block& block, const SelectArgs& args, bool lower) {
  const SelectScratch s = scratch_of(args);
  block.each([&](uint32_t t) {
    each_of_range(block, args, t, [&](uint32_t bits) {
      if (!lower) return count_one(&s.upper[bits >> 16]);
      if (bits >> 16 == s.found[0]) count_one(&s.lower[bits & 0xFFFF]);
    });
  });
}

// Finds the digit of the k-th largest value, and its place among the values with that digit. Runs in one
// block: each thread adds up 256 bins, then one thread finds the place.
WEFT_KERNEL_CODE void find_digit(const Block& block, SelectShared& shared, const SelectArgs& args,
                                 bool lower) {
  const SelectScratch s = scratch_of(args);
  const uint32_t* const bins = lower ? s.lower : s.upper;
  constexpr uint32_t kEach = kSelectBins / kKernelThreads;
  block.each([&](uint32_t t) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kEach; i++) sum += bins[t * kEach + i];
    shared.greater[t] = sum;
  });
  block.each([&](uint32_t t) {
    if (t != 0) return;
    uint32_t k = lower ? s.found[2] : static_cast<uint32_t>(args.take);
    uint32_t part = kKernelThreads - 1;
    while (part > 0 && shared.greater[part] < k) k -= shared.greater[part--];
    uint32_t digit = part * kEach + kEach - 1;
    while (digit > part * kEach && bins[digit] < k) k -= bins[digit--];
    s.found[lower ? 1 : 0] = digit;
    s.found[2] = k;
  });
}

WEFT_KERNEL_CODE uint32_t threshold_of(const SelectScratch& s) {
  return s.found[0] << 16 | s.found[1];
}

// Counts the values of each thread's run.
WEFT_KERNEL_CODE void count_runs(const Block& block, SelectShared& shared, const SelectArgs& args) {
  const uint32_t threshold = threshold_of(scratch_of(args));
  block.each([&](uint32_t t) {
    uint32_t greater = 0;
    uint32_t equal = 0;
    each_of_run(block, args, t, [&](uint64_t, uint32_t bits) {
      if (bits > threshold) greater++;
      if (bits == threshold) equal++;
    });
    shared.greater[t] = greater;
    shared.equal[t] = equal;
  });
}

WEFT_KERNEL_CODE void count_range(const Block& block, SelectShared& shared, const SelectArgs& args) {
  const SelectScratch s = scratch_of(args);
  count_runs(block, shared, args);
  add_halves(block, shared.greater, kKernelThreads);
  add_halves(block, shared.equal, kKernelThreads);
  block.each([&](uint32_t t) {
    if (t != 0) return;
    s.greater[block.index] = shared.greater[0];
    s.equal[block.index] = shared.equal[0];
  });
}

// Replaces counts by the sums of those before them; run by one thread.
WEFT_KERNEL_CODE void sum_before(uint32_t* counts, uint64_t count) {
  uint32_t sum = 0;
  for (uint64_t i = 0; i < count; i++) {
    const uint32_t own = counts[i];
    counts[i] = sum;
    sum += own;
  }
}

// Runs in one block: each thread adds up some ranges, one thread the threads' sums, then each thread its own
// ranges again.
WEFT_KERNEL_CODE void scan_ranges(const Block& block, SelectShared& shared, const SelectArgs& args) {
  const SelectScratch s = scratch_of(args);
  const uint64_t ranges = select_ranges(args);
  const uint64_t each = (ranges + kKernelThreads - 1) / kKernelThreads;
  const auto begin = [&](uint32_t t) { return t * each < ranges ? t * each : ranges; };
  block.each([&](uint32_t t) {
    uint32_t greater = 0;
    uint32_t equal = 0;
    for (uint64_t i = begin(t); i < begin(t + 1); i++) {
      greater += s.greater[i];
      equal += s.equal[i];
    }
    shared.greater[t] = greater;
    shared.equal[t] = equal;
  });
  block.each([&](uint32_t t) {
    if (t == 0) sum_before(shared.greater, kKernelThreads);
    if (t == 1) sum_before(shared.equal, kKernelThreads);
  });
  block.each([&](uint32_t t) {
    uint32_t greater = shared.greater[t];
    uint32_t equal = shared.equal[t];
    for (uint64_t i = begin(t); i < begin(t + 1); i++) {
      const uint32_t own_greater = s.greater[i];
      const uint32_t own_equal = s.equal[i];
      s.greater[i] = greater;
      s.equal[i] = equal;
      greater += own_greater;
      equal += own_equal;
    }
  });
}

// Writes the taken values of a range. The first block also writes the unused entries. It takes part even if
// there are no values at all.
WEFT_KERNEL_CODE void write_taken(const Block& block, SelectShared& shared, const SelectArgs& args) {
  const SelectScratch s = scratch_of(args);
  if (args.take > 0) count_runs(block, shared, args);
  block.each([&](uint32_t t) {
    if (args.take == 0) return;
    if (t == 0) sum_before(shared.greater, kKernelThreads);
    if (t == 1) sum_before(shared.equal, kKernelThreads);
  });
  block.each([&](uint32_t t) {
    const uint32_t threshold = args.take > 0 ? threshold_of(s) : 0;
    const uint32_t most_equal = args.take > 0 ? s.found[2] : 0;
    uint32_t greater = args.take > 0 ? s.greater[block.index] + shared.greater[t] : 0;
    uint32_t equal = args.take > 0 ? s.equal[block.index] + shared.equal[t] : 0;
    each_of_run(block, args, t, [&](uint64_t i, uint32_t bits) {
      const float value = args.values[i];
      bool taken = false;
      if (args.take > 0 && (bits > threshold || (bits == threshold && equal < most_equal))) {
        const uint32_t place = greater + (equal < most_equal ? equal : most_equal);
        args.selected[place].place = static_cast<uint32_t>(i);
        args.selected[place].value = value;
        taken = true;
      }
      if (bits > threshold) greater++;
      if (bits == threshold) equal++;
      if (args.residual && (taken || bits >= 0x7F800000u)) args.values[i] = 0;
    });
    if (block.index != 0) return;
    for (uint64_t i = args.take + t; i < args.room; i += kKernelThreads) {
      args.selected[i].place = kNoPlace;
      args.selected[i].value = 0;
    }
  });
}

WEFT_KERNEL_CODE void select(const Block& block, SelectShared& shared, const SelectArgs& args,
                             SelectPass pass) {
  switch (pass) {
    case SelectPass::kClear:
      return clear_bins(block, args);
    case SelectPass::kUpper:
    case SelectPass::kLower:
      return count_digits(block, args, pass == SelectPass::kLower);
    case SelectPass::kFindUpper:
    case SelectPass::kFindLower:
      return find_digit(block, shared, args, pass == SelectPass::kFindLower);
    case SelectPass::kCount:
      return count_range(block, shared, args);
    case SelectPass::kScan:
      return scan_ranges(block, shared, args);
    default:
      return write_taken(block, shared, args);
  }
}

}  // namespace weft::cuda
