// Replaces Highway's library in the wheel, which contains Highway's headers alone: its library would need
// libstdc++.so. Defines the two functions that HWY_DYNAMIC_DISPATCH calls. The kernels are compiled for
// AVX2 and AVX-512 as the levels v3 and v4 of x86-64 define them, and for the compiler's baseline. Compiled
// by gcc 12 or clang 17 and later ones, which know these levels.
#include "kernels/targets.h"

#include <hwy/targets.h>

namespace hwy {

int64_t SupportedTargets() {
  int64_t targets = HWY_STATIC_TARGET;
#if HWY_ARCH_X86_64
  if (__builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul")) {
    if (__builtin_cpu_supports("x86-64-v3")) targets |= HWY_AVX2;
    if (__builtin_cpu_supports("x86-64-v4")) targets |= HWY_AVX3;
  }
#endif
  return targets;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
