// Simulates a program's computation on the rank's core. The amount of work does not depend on what else the
// core does. Threads: the thread that made it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

class Computing {
 public:
  // Takes a tenth of a second to measure how fast this core computes while it has nothing else to do.
  Computing();
  void begin() { done_ = 0; }
  // Continues until the work since begin() equals what this core alone computes in `time`.
  void until(std::chrono::nanoseconds time);

 private:
  void some();

  double each_ns_ = 0;  // of some()
  uint64_t done_ = 0;   // calls of some() since begin()
  std::array<float, 2048> values_{};
};
