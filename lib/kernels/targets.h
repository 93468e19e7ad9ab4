// Selects the instruction sets that the kernels are compiled for: the baseline, AVX2, AVX-512 and later ones
// that a newer Highway supports. Every file of this folder includes it before any header of Highway.
#pragma once

// With sanitizers, compiling all variants of the kernels takes minutes. Sanitized builds have two instruction
// sets, and only the loops for any number of inputs (WEFT_KERNELS_SPECIAL).
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WEFT_KERNELS_SPECIAL 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(undefined_behavior_sanitizer)
#define WEFT_KERNELS_SPECIAL 0
#endif
#endif
#ifndef WEFT_KERNELS_SPECIAL
#define WEFT_KERNELS_SPECIAL 1
#endif

// SSSE3 and SSE4 gain little over the baseline and cost compile time. Vectors of unknown size (SVE, RVV)
// cannot be elements of arrays, which the kernels use.
#define WEFT_KERNELS_NEVER (HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#if WEFT_KERNELS_SPECIAL
#define HWY_DISABLED_TARGETS WEFT_KERNELS_NEVER
#else
#define HWY_DISABLED_TARGETS (WEFT_KERNELS_NEVER | (HWY_AVX2 - 1))  // lower bits are newer ones
#endif
