// Sets the floating-point modes that the kernels guarantee: round to nearest even, denormals kept, no traps.
// Restores the calling thread's own modes afterwards, for example those of code compiled with -ffast-math.
// Threads: a value on the stack of one thread.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace weft {

class FloatEnvironment {
 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

#if defined(__x86_64__)
  FloatEnvironment() : caller_(_mm_getcsr()) {
    if (differs()) _mm_setcsr(kDefault);
  }
  ~FloatEnvironment() {
    if (differs()) _mm_setcsr(caller_);
  }

 private:
  static constexpr uint32_t kDefault = 0x1F80;
  static constexpr uint32_t kSticky = 0x3F;  // flags of past exceptions, which are not modes
  bool differs() const { return (caller_ & ~kSticky) != kDefault; }
  const uint32_t caller_;
#elif defined(__aarch64__)
  FloatEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(caller_));
    if (caller_ != 0) asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}) : "memory");
  }
  ~FloatEnvironment() {
    if (caller_ != 0) asm volatile("msr fpcr, %0" : : "r"(caller_) : "memory");
  }

 private:
  uint64_t caller_ = 0;
#else
  FloatEnvironment() {
    std::fegetenv(&caller_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnvironment() { std::fesetenv(&caller_); }

 private:
  std::fenv_t caller_;
#endif
};

}  // namespace weft
