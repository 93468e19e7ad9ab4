// SplitMix64 (Steele, Lea and Flood 2014): hashes that ranks compare, and random numbers that are equal on
// every machine, unlike those of the standard library's distributions. Not for secrets.
#pragma once

#include <cstdint>

namespace weft {

inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

// The finaliser: every input bit affects every output bit.
constexpr uint64_t scramble(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t next() { return scramble(state_ += kSplitMixStep); }

 private:
  uint64_t state_;
};

}  // namespace weft
