// Straggler detection over messages: how long ranks waited for each other in a reducer's step. Every message
// between ranks carries one word of these statistics, so that all ranks name the same straggler. A step fills
// them (reducer/step/waits.h); lanes over messages exchange them (CollectiveLane::share_waits). In shared
// memory a rank sees directly which ranks are late.
//
// A rank that waits for another cannot see whether that one is itself waiting. A rank behind a slow link
// waits for all others, and they wait for it; a rank that it serves last is waited for as well. So each rank
// publishes the two ranks for which it has waited longest. The straggler is the rank with the largest sum.
// That is a late rank, for which all others wait. Or it is the rank behind a slow link: all others wait for
// it, and it waits for each of them.
//
// If that rank and another waited for each other, the link between them is slow. Other ranks may then have
// waited longer for the wrong one of the two, because it waited itself. The straggler is the one of the two
// that has such mutual waits with further ranks too: its link is slow to all of them. Every rank sends its
// word to every other rank directly, because a word that the straggler passed on would arrive over its slow
// link, after the step.
//
// Threads: under the progress lock. straggler and waited_ns also after the step is finished, by one thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft {

// A rank and the time it was waited for, in 32 bits: in units of 1024 ns, rounded down by 0.1 % at most.
struct WaitEntry {
  int rank = -1;  // -1: none
  uint64_t ns = 0;

  uint32_t pack() const {
    if (rank < 0 || rank >= kMostRanks || ns >> kUnitBits == 0) return 0;
    return static_cast<uint32_t>(rank + 1) << kTimeBits | code(ns >> kUnitBits);
  }
  static WaitEntry unpack(uint32_t word) {
    return {static_cast<int>(word >> kTimeBits) - 1, time(word & kTimeMask) << kUnitBits};
  }

 private:
  static constexpr int kMostRanks = 0xffff;
  static constexpr uint32_t kTimeBits = 16, kTimeMask = 0xffff;
  static constexpr uint32_t kUnitBits = 10;
  static constexpr uint32_t kDigits = 10;   // mantissa bits below the leading one
  static constexpr uint32_t kLongest = 30;  // largest exponent; about 26 days

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
  uint64_t ns = 0;  // this rank's wait for it, or the average wait of all other ranks, whichever is larger
};

class WaitStats {
 public:
  // rank: this rank. ranks: the world size.
  WaitStats(int rank, int ranks)
      : rank_(static_cast<size_t>(rank)),
        waited_ns_(static_cast<size_t>(ranks)),
        words_(static_cast<size_t>(ranks)),
        sums_(static_cast<size_t>(ranks)) {}

  void clear() {
    std::fill(waited_ns_.begin(), waited_ns_.end(), 0);
    std::fill(words_.begin(), words_.end(), 0);
  }
  // Adds a wait of `ns` for the ranks that are set in `late`.
  void waited(const std::vector<bool>& late, uint64_t ns) {
    WaitEntry first, second;
    for (size_t r = 0; r < waited_ns_.size(); r++) {
      if (late[r]) waited_ns_[r] += ns;
      const WaitEntry one{static_cast<int>(r), waited_ns_[r]};
      if (one.ns > first.ns) {
        second = first;
        first = one;
      } else if (one.ns > second.ns) {
        second = one;
      }
    }
    words_[rank_] = first.pack() | uint64_t{second.pack()} << 32;
  }

  // Returns the word that messages carry.
  uint64_t word() const { return words_[rank_]; }
  void received(int rank, uint64_t word) { words_[static_cast<size_t>(rank)] = word; }

  const std::vector<uint64_t>& waited_ns() const { return waited_ns_; }  // this rank's wait for each rank
  // Returns the straggler; of equals, the lowest rank.
  Straggler straggler() {
    std::fill(sums_.begin(), sums_.end(), 0);
    for (size_t r = 0; r < words_.size(); r++) {
      for (const WaitEntry& entry : entries_of(r)) {
        if (entry.rank >= 0) sums_[static_cast<size_t>(entry.rank)] += entry.ns;
      }
    }
    const auto most = static_cast<size_t>(std::max_element(sums_.begin(), sums_.end()) - sums_.begin());
    if (sums_[most] == 0) return {};
    const size_t found = behind_slow_link(most);
    const uint64_t others = std::max<size_t>(sums_.size(), 2) - 1;
    return {static_cast<int>(found), std::max(sums_[found] / others, waited_ns_[found])};
  }
  uint64_t memory_bytes() const {
    return (waited_ns_.capacity() + words_.capacity() + sums_.capacity()) * sizeof(uint64_t);
  }

 private:
  // Decodes the word of a rank; ignores notes about itself and about ranks that do not exist.
  std::array<WaitEntry, 2> entries_of(size_t rank) const {
    std::array<WaitEntry, 2> entries;
    for (size_t i = 0; i < entries.size(); i++) {
      const WaitEntry entry = WaitEntry::unpack(static_cast<uint32_t>(words_[rank] >> (32 * i)));
      const auto of = static_cast<size_t>(entry.rank);
      if (entry.rank >= 0 && of < words_.size() && of != rank) entries[i] = entry;
    }
    return entries;
  }
  uint64_t waited(size_t rank, size_t other) const {
    uint64_t ns = 0;
    for (const WaitEntry& entry : entries_of(rank))
      ns += static_cast<size_t>(entry.rank) == other ? entry.ns : 0;
    return ns;
  }
  uint64_t mutual(size_t a, size_t b) const { return std::min(waited(a, b), waited(b, a)); }
  // Returns `most`, the rank with the largest sum. If it and another rank waited for each other, returns the
  // other one if that has more mutual waits with further ranks.
  size_t behind_slow_link(size_t most) const {
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

  // Weight of mutual waits with further ranks. Over slow links, values from 4 to 16 named the right rank in
  // 95 to 100 of 100 steps; sums alone did so in 36 to 98.
  static constexpr uint64_t kAside = 4;

  const size_t rank_;
  std::vector<uint64_t> waited_ns_;
  std::vector<uint64_t> words_;  // per rank, including this one
  std::vector<uint64_t> sums_;   // scratch of straggler()
};

}  // namespace weft
