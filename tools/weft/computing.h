// What a program computes with the core that a rank has, in an amount that is the same however much else the
// core does. Threads: the one that made it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

class Computing {
 public:
  // Takes a tenth of a second to find how much this core computes while nothing else is to be done.
  Computing();
  void begin() { done_ = 0; }
  // Go on until as much is computed since begin() as this core alone computes in `time`.
  void until(std::chrono::nanoseconds time);

 private:
  void some();

  double each_ns_ = 0;  // of some()
  uint64_t done_ = 0;   // how often since begin()
  std::array<float, 2048> values_{};
};
