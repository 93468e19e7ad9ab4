// How long the progress thread sleeps between two polls while other ranks must act. Nobody waits for it then:
// the program computes, perhaps on the same core. The sleep is a small part of how long waits last, so it
// delays little; where waits are shorter than a sleep the thread polls on instead. Threads: one thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft {

class Patience {
 public:
  // A poll has found that it must wait. Returns how long to sleep before the next one, in nanoseconds; 0:
  // poll on.
  uint64_t waiting(uint64_t now_ns) {
    if (!waits_) {
      waits_ = true;
      since_ns_ = now_ns;
    }
    const uint64_t expected_ns = std::max(usual_ns_, now_ns - since_ns_);
    return expected_ns < kShortNs ? 0 : std::clamp(expected_ns / 8, kLeastNs, kMostNs);
  }

  // A poll has advanced something.
  void advanced(uint64_t now_ns) {
    const uint64_t waited_ns = waits_ ? std::min(now_ns - since_ns_, kLongNs) : 0;
    usual_ns_ = (3 * usual_ns_ + waited_ns) / 4;
    waits_ = false;
  }

 private:
  static constexpr uint64_t kShortNs = 20'000;  // about what a sleep and a wake-up take
  static constexpr uint64_t kLeastNs = 10'000;
  static constexpr uint64_t kMostNs =
      100'000;  // what a link delivers meanwhile fits into the socket's buffer
  static constexpr uint64_t kLongNs = 8 * kMostNs;

  bool waits_ = false;
  uint64_t since_ns_ = 0;  // when the current wait began
  uint64_t usual_ns_ = 0;  // a mean of the last waits, each at most kLongNs
};

}  // namespace weft
