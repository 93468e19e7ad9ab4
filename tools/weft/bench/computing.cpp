#include "computing.h"

Computing::Computing() {
  const auto begin = std::chrono::steady_clock::now();
  uint64_t times = 0;
  std::chrono::nanoseconds taken{};
  for (; taken < std::chrono::milliseconds(100); times++) {
    some();
    taken = std::chrono::steady_clock::now() - begin;
  }
  each_ns_ = static_cast<double>(taken.count()) / static_cast<double>(times);
}

void Computing::until(std::chrono::nanoseconds time) {
  for (; static_cast<double>(done_) * each_ns_ < static_cast<double>(time.count()); done_++) some();
}

// Computes for some microseconds.
void Computing::some() {
  for (int i = 0; i < 16; i++) {
    for (float& value : values_) value = value * 0.999F + 1.0F;
    asm volatile("" : : "r"(values_.data()) : "memory");
  }
}
