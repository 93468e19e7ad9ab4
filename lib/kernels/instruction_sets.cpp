// Defines the functions that HWY_DYNAMIC_DISPATCH and tests call, in place of Highway's library: that one
// measures its timer for 6 ms when a process loads it. The kernels are compiled for AVX2 and AVX-512 as the
// levels v3 and v4 of x86-64 define them, and for the compiler's baseline.
#include "kernels/targets.h"

#include <hwy/targets.h>

namespace hwy {
namespace {

int64_t only = 0;  // of SetSupportedTargetsForTest; 0: no restriction

#if HWY_ARCH_X86_64
// Clang before 17 and gcc before 12 do not know the levels, but their main features.
#if defined(__clang__) ? __clang_major__ < 17 : __GNUC__ < 12
bool has_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#else
bool has_v3() {
  return __builtin_cpu_supports("x86-64-v3");
}
bool has_v4() {
  return __builtin_cpu_supports("x86-64-v4");
}
#endif
#endif

}  // namespace

int64_t SupportedTargets() {
  if (only != 0) return only;
  int64_t targets = HWY_STATIC_TARGET;
#if HWY_ARCH_X86_64
  if (__builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul")) {
    if (has_v3()) targets |= HWY_AVX2;
    if (has_v4()) targets |= HWY_AVX3;
  }
#endif
  return targets;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

// Not while another thread calls a kernel.
void SetSupportedTargetsForTest(int64_t targets) {
  only = targets;
  GetChosenTarget().DeInit();
}

}  // namespace hwy
