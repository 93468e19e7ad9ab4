// Which instruction sets the kernels are compiled for: the baseline, AVX2, AVX-512 and what a newer Highway
// knows beyond. Included before any header of Highway, in every file of this folder alike.
#pragma once

// SSSE3 and SSE4 gain little over the baseline and cost compile time. Vectors of unknown size (SVE, RVV)
// cannot be elements of arrays, which the kernels use.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
