// How long ranks waited for each other in a reducer's step, as far as they know it of each other: every
// message between them carries a word of it, so that all name the same rank. Filled by a step (sync/waits.h),
// sent and heard by lanes over messages (CollectiveLane::share_waits); in shared memory a rank sees who is
// late by itself.
//
// Who waits for a rank does not see whether that one waits itself: a rank behind a slow cable waits for all
// others as they wait for it, and one that it serves last is waited for as well. So each rank tells for which
// two it has waited longest, and named is the rank with the largest sum: the late one, for which all others
// wait; or the one behind the slow cable, for which all others wait while it waits for each of them.
// Where that rank and another waited for each other, a cable between them is slow, and third ones may have
// waited longer for the wrong one of the two, as it waited itself. Of these two it is the one that has
// waited and was waited for with others too: its cable is slow to all. Every rank says so to every other one
// itself: what the waited-for would pass on comes over its slow cable, when the step is over. Threads: under
// the engine's drive lock; straggler and waited_ns also when the step is finished, by one thread.
#pragma once

#include <algorithm>
#include <array>
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
  // Of this rank, and of how many there are.
  WaitNotes(int rank, int ranks)
      : rank_(static_cast<size_t>(rank)),
        waited_ns_(static_cast<size_t>(ranks)),
        words_(static_cast<size_t>(ranks)),
        sums_(static_cast<size_t>(ranks)) {}

  void clear() {
    std::fill(waited_ns_.begin(), waited_ns_.end(), 0);
    std::fill(words_.begin(), words_.end(), 0);
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
    words_[rank_] = first.pack() | uint64_t{second.pack()} << 32;
  }

  // What messages carry.
  uint64_t word() const { return words_[rank_]; }
  void heard(int rank, uint64_t word) { words_[static_cast<size_t>(rank)] = word; }

  const std::vector<uint64_t>& waited_ns() const { return waited_ns_; }  // this rank for each
  // Of equals the lowest rank.
  Straggler straggler() {
    std::fill(sums_.begin(), sums_.end(), 0);
    for (size_t r = 0; r < words_.size(); r++) {
      for (const WaitNote& note : notes_of(r)) {
        if (note.rank >= 0) sums_[static_cast<size_t>(note.rank)] += note.ns;
      }
    }
    const auto most = static_cast<size_t>(std::max_element(sums_.begin(), sums_.end()) - sums_.begin());
    if (sums_[most] == 0) return {};
    const size_t found = behind_cable(most);
    const uint64_t others = std::max<size_t>(sums_.size(), 2) - 1;
    return {static_cast<int>(found), std::max(sums_[found] / others, waited_ns_[found])};
  }
  uint64_t memory_bytes() const {
    return (waited_ns_.capacity() + words_.capacity() + sums_.capacity()) * sizeof(uint64_t);
  }

 private:
  // What a rank told; of ranks that are not there, or of itself, nothing.
  std::array<WaitNote, 2> notes_of(size_t rank) const {
    std::array<WaitNote, 2> notes;
    for (size_t i = 0; i < notes.size(); i++) {
      const WaitNote note = WaitNote::unpack(static_cast<uint32_t>(words_[rank] >> (32 * i)));
      const auto of = static_cast<size_t>(note.rank);
      if (note.rank >= 0 && of < words_.size() && of != rank) notes[i] = note;
    }
    return notes;
  }
  uint64_t waited(size_t rank, size_t other) const {
    uint64_t ns = 0;
    for (const WaitNote& note : notes_of(rank)) ns += static_cast<size_t>(note.rank) == other ? note.ns : 0;
    return ns;
  }
  uint64_t mutual(size_t a, size_t b) const { return std::min(waited(a, b), waited(b, a)); }
  // The rank for which all have waited most; or, if it and another waited for each other, that other where it
  // has more of such waiting with third ones.
  size_t behind_cable(size_t most) const {
    size_t other = most;
    for (size_t r = 0; r < words_.size(); r++) {
      if (r != most && mutual(most, r) > mutual(most, other)) other = r;
    }
    if (other == most || mutual(most, other) < waited(other, most) / 2) return most;
    const auto weight = [&](size_t one, size_t with) {
      uint64_t aside = 0;
      for (size_t r = 0; r < words_.size(); r++) aside += r == with ? 0 : mutual(one, r);
      return sums_[one] + kAside * aside;
    };
    const uint64_t its = weight(most, other), others = weight(other, most);
    return others > its || (others == its && other < most) ? other : most;
  }

  // Over slow cables 4 to 16 named the right rank in 95 to 100 of 100 steps, where sums alone did in 36
  // to 98.
  static constexpr uint64_t kAside = 4;

  const size_t rank_;
  std::vector<uint64_t> waited_ns_;
  std::vector<uint64_t> words_;  // of each rank, this one's too
  std::vector<uint64_t> sums_;   // of a look at all of them
};

}  // namespace weft
