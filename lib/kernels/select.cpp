// Selects the largest of many values, for every instruction set; the selection does not depend on the
// instruction set. Called through host_ops.cpp.
//
// A sample estimates a magnitude that somewhat more values reach than are taken. One pass over the values
// collects these candidates. The smallest taken magnitude is then found among them, digit by digit. If the
// estimate was wrong, so that candidates are too few or do not fit into scratch, every value becomes a
// candidate.
#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "base/splitmix.h"
#include "hook/select_scratch.h"
#include "kernels/targets.h"

// Compile this file once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/select.cpp"
#include <hwy/foreach_target.h>

#include "kernels/elements-inl.h"
#include "kernels/select-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

constexpr uint32_t kInfinity = 0x7F800000;
constexpr uint64_t kNoRoom = UINT64_MAX;

// Returns the magnitude as bits, which order like magnitudes; a NaN is larger than all others.
uint32_t magnitude_of(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu;
}

// Divides scratch: bins of a histogram, then candidates or a sample. If every value is a candidate, bins may
// use all of it.
struct Room {
  uint32_t* bins;
  uint32_t* places;
  uint32_t* bits;
  uint64_t size;

  explicit Room(const SelectArgs& args)
      : bins(args.scratch), places(bins + kSelectHostBins), size(select_candidates(args.count, args.take)) {
    bits = places + size;
  }
};

// The set of candidates if every value is a candidate.
struct Every {
  const float* values;
  uint64_t count;
  uint32_t place(uint64_t i) const { return static_cast<uint32_t>(i); }
  float value(uint64_t i) const { return values[i]; }
};
struct Candidates {
  const uint32_t *places, *bits;
  uint64_t count;
  uint32_t place(uint64_t i) const { return places[i]; }
  float value(uint64_t i) const { return std::bit_cast<float>(bits[i]); }
};

// The k-th largest magnitude, and how many values of exactly that magnitude are among the k largest.
struct Threshold {
  uint32_t bits = 0;
  uint64_t equal = 0;
};
struct Digit {
  int shift, bits;
};
// More digits need more passes; fewer digits need more bins.
constexpr Digit kDigits[] = {{20, 11}, {10, 10}, {0, 10}};
constexpr Digit kDigitsOfMany[] = {{16, 15}, {0, 16}};
static_assert(1u << kDigits[0].bits == kSelectHostBins);
static_assert(1u << kDigitsOfMany[1].bits == kSelectHostManyBins);

template <size_t kCount, class Some>
Threshold largest(const Digit (&digits)[kCount], const Some& some, uint64_t k, uint32_t* bins) {
  Threshold found{0, k};
  for (const Digit& digit : digits) {
    const uint32_t last = (1u << digit.bits) - 1;
    const int known = digit.shift + digit.bits;
    std::fill_n(bins, last + 1, 0);
    for (uint64_t i = 0; i < some.count; i++) {
      const uint32_t magnitude = magnitude_of(some.value(i));
      if ((magnitude ^ found.bits) >> known == 0) bins[magnitude >> digit.shift & last]++;
    }
    uint32_t value = last;
    while (value > 0 && bins[value] < found.equal) found.equal -= bins[value--];
    found.bits |= value << digit.shift;
  }
  return found;
}

// Returns a magnitude that most likely at least `take` values reach, and not many more. It samples a random
// value in each of many ranges, and allows for three standard deviations of the number of hits.
uint32_t bound_of(const SelectArgs& args, const Room& room) {
  if (args.take == 0) return kInfinity;
  const uint64_t size = std::min<uint64_t>(args.count / 16, kSelectSampled);
  uint32_t* const sample = room.places;
  SplitMix64 random(args.count);
  for (uint64_t i = 0; i < size; i++) {
    const uint64_t begin = i * args.count / size, end = (i + 1) * args.count / size;
    sample[i] = std::bit_cast<uint32_t>(args.values[begin + ((random.next() >> 32) * (end - begin) >> 32)]);
  }
  const double expected =
      static_cast<double>(size) * static_cast<double>(args.take) / static_cast<double>(args.count);
  const auto k = static_cast<uint64_t>(expected + 3 * std::sqrt(expected)) + 4;
  if (k >= size) return 0;
  return std::min(largest(kDigits, Candidates{sample, sample, size}, k, room.bins).bits, kInfinity);
}

// Collects the values whose magnitude is at least `bound` into room. Returns their number, or kNoRoom.
uint64_t collect(const SelectArgs& args, uint32_t bound, const Room& room) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  const auto below = hn::Set(di, static_cast<int32_t>(bound) - 1);
  const auto mask = hn::Set(di, 0x7FFFFFFF);
  const auto iota = hn::Iota(du, 0);
  uint64_t used = 0;
  uint64_t i = 0;
  for (; i + lanes <= args.count; i += lanes) {
    const auto bits = hn::BitCast(di, hn::LoadU(d, args.values + i));
    const auto reaches = hn::Gt(hn::And(bits, mask), below);
    if (hn::AllFalse(di, reaches)) continue;
    if (used + lanes > room.size) return kNoRoom;
    const auto places = hn::Add(hn::Set(du, static_cast<uint32_t>(i)), iota);
    hn::CompressStore(hn::BitCast(du, bits), hn::RebindMask(du, reaches), du, room.bits + used);
    used += hn::CompressStore(places, hn::RebindMask(du, reaches), du, room.places + used);
  }
  for (; i < args.count; i++) {
    if (magnitude_of(args.values[i]) < bound) continue;
    if (used == room.size) return kNoRoom;
    room.bits[used] = std::bit_cast<uint32_t>(args.values[i]);
    room.places[used++] = static_cast<uint32_t>(i);
  }
  return used;
}

// Takes values from `some`, which contains every value that is taken or is not finite.
template <size_t kCount, class Some>
void take_of(const Digit (&digits)[kCount], const SelectArgs& args, const Some& some, uint32_t* bins) {
  Threshold threshold{kInfinity, 0};
  if (args.take > 0) threshold = largest(digits, some, args.take, bins);
  uint64_t used = 0;
  // The body has no branches, because the taken values are at random positions.
  for (uint64_t i = 0; used < args.take; i++) {
    const uint32_t magnitude = magnitude_of(some.value(i));
    const bool equal = (magnitude == threshold.bits) & (threshold.equal > 0);
    args.selected[used] = {some.place(i), some.value(i)};
    threshold.equal -= equal ? 1 : 0;
    used += ((magnitude > threshold.bits) | equal) ? 1 : 0;
  }
  std::fill(args.selected + used, args.selected + args.room, Selected{kNoPlace, 0});
  if (!args.residual) return;
  for (uint64_t k = 0; k < used; k++) args.values[args.selected[k].place] = 0;
  // If the taken values include infinities or NaNs, the residual does not keep further ones.
  for (uint64_t i = 0; threshold.bits >= kInfinity && i < some.count; i++) {
    if (magnitude_of(some.value(i)) >= kInfinity) args.values[some.place(i)] = 0;
  }
}

}  // namespace

void select_largest(const SelectArgs& given) {
  const SelectArgs args = given;
  const Room room(args);
  if (args.count >= kSelectSampled && args.take <= args.count / 16) {
    const uint64_t found = collect(args, bound_of(args, room), room);
    if (found != kNoRoom && found >= args.take) {
      return take_of(kDigits, args, Candidates{room.places, room.bits, found}, room.bins);
    }
  }
  const Every every{args.values, args.count};
  if (args.count < kSelectMany) return take_of(kDigits, args, every, room.bins);
  take_of(kDigitsOfMany, args, every, room.bins);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
