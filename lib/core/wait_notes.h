// How long ranks waited for each other in a reducer's step, as far as they know it of each other: every
// message between them carries a word of it, so that all name the same rank. Filled by a step (sync/waits.h),
// sent and heard by lanes over messages (CollectiveLane::share_waits); in shared memory a rank sees who is
// late by itself.
//
// Who waits for a rank does not see whether that one waits itself: a rank behind a slow cable waits for all
// others as they wait for it, and one that it serves last is waited for as well. So each rank tells for which
// two it has waited longest, and named is the rank with the largest sum: the late one, for which all others
// wait; or the one behind the slow cable, for which all others wait while it waits for each of them. Every
// rank says so to every other one itself: sums that the waited-for would pass on come over its slow cable,
// when the step is over. Threads: under the engine's drive lock; straggler and waited_ns also when the step
// is finished, by one thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// A rank and how long it was waited for, in 32 bits: microseconds (of 1024 ns), a thousandth short at most.
struct WaitNote {
  int rank = -1;  // -1: nobody
  uint64_t ns = 0;

  uint32_t pack() const {
    if (rank < 0 || rank >= kMostRanks || ns >> kUnitBits == 0) return 0;
    return static_cast<uint32_t>(rank + 1) << kTimeBits | code(ns >> kUnitBits);
  }
  static WaitNote unpack(uint32_t word) {
    return {static_cast<int>(word >> kTimeBits) - 1, time(word & kTimeMask) << kUnitBits};
  }

 private:
  static constexpr int kMostRanks = 0xffff;
  static constexpr uint32_t kTimeBits = 16, kTimeMask = 0xffff;
  static constexpr uint32_t kUnitBits = 10;
  static constexpr uint32_t kDigits = 10;   // of a mantissa, below its leading one
  static constexpr uint32_t kLongest = 30;  // exponent; about 26 days

  static uint32_t code(uint64_t units) {
    const auto width = static_cast<uint32_t>(std::bit_width(units));
    if (width <= kDigits + 1) return static_cast<uint32_t>(units);
    const uint32_t shift = width - kDigits - 1;
    if (shift > kLongest) return ((kLongest + 2) << kDigits) - 1;
    return (shift << kDigits) + static_cast<uint32_t>(units >> shift);
  }
  static uint64_t time(uint32_t code) {
    const uint32_t exponent = std::min(code >> kDigits, kLongest + 1);
    const uint64_t digits = code & ((1U << kDigits) - 1);
    return exponent == 0 ? digits : (digits + (1U << kDigits)) << (exponent - 1);
  }
};

struct Straggler {
  int rank = -1;
  uint64_t ns = 0;  // what this rank waited for it; or all others on average, where that is more
};

class WaitNotes {
 public:
  explicit WaitNotes(int ranks)
      : waited_ns_(static_cast<size_t>(ranks)),
        heard_(static_cast<size_t>(ranks)),
        sums_(static_cast<size_t>(ranks)) {}

  void clear() {
    word_ = 0;
    std::fill(waited_ns_.begin(), waited_ns_.end(), 0);
    std::fill(heard_.begin(), heard_.end(), 0);
  }
  // This rank has waited so long for those that are set.
  void waited(const std::vector<bool>& late, uint64_t ns) {
    WaitNote first, second;
    for (size_t r = 0; r < waited_ns_.size(); r++) {
      if (late[r]) waited_ns_[r] += ns;
      const WaitNote one{static_cast<int>(r), waited_ns_[r]};
      if (one.ns > first.ns) {
        second = first;
        first = one;
      } else if (one.ns > second.ns) {
        second = one;
      }
    }
    word_ = first.pack() | uint64_t{second.pack()} << 32;
  }

  // What messages carry.
  uint64_t word() const { return word_; }
  void heard(int rank, uint64_t word) { heard_[static_cast<size_t>(rank)] = word; }

  const std::vector<uint64_t>& waited_ns() const { return waited_ns_; }  // this rank for each
  // Of equals the lowest rank.
  Straggler straggler() {
    sums_ = waited_ns_;
    for (size_t r = 0; r < heard_.size(); r++) {
      for (const auto half : {static_cast<uint32_t>(heard_[r]), static_cast<uint32_t>(heard_[r] >> 32)}) {
        const WaitNote note = WaitNote::unpack(half);
        if (note.rank < 0 || static_cast<size_t>(note.rank) >= sums_.size() ||
            static_cast<size_t>(note.rank) == r)
          continue;
        sums_[static_cast<size_t>(note.rank)] += note.ns;
      }
    }
    const auto most = std::max_element(sums_.begin(), sums_.end());
    if (*most == 0) return {};
    const auto found = static_cast<size_t>(most - sums_.begin());
    const uint64_t others = std::max<size_t>(sums_.size(), 2) - 1;
    return {static_cast<int>(found), std::max(*most / others, waited_ns_[found])};
  }
  uint64_t memory_bytes() const {
    return (waited_ns_.capacity() + heard_.capacity() + sums_.capacity()) * sizeof(uint64_t);
  }

 private:
  uint64_t word_ = 0;
  std::vector<uint64_t> waited_ns_;
  std::vector<uint64_t> heard_;  // words, by who said them
  std::vector<uint64_t> sums_;   // of a look at all of them
};

}  // namespace weft
