// Constants for the sanitizer with which the tests are compiled, and for emulation. Some tests cannot run
// under a sanitizer, or try less.
#pragma once

#include <cstdint>

#if defined(__has_feature)  // clang
#define WEFT_TEST_HAS_FEATURE(name) __has_feature(name)
#else
#define WEFT_TEST_HAS_FEATURE(name) 0
#endif

namespace weft::test {

#if defined(__SANITIZE_THREAD__) || WEFT_TEST_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || WEFT_TEST_HAS_FEATURE(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
// A sanitizer makes everything about ten times slower.
inline constexpr bool kSanitized = kThreadSanitizer || kAddressSanitizer;
// So does an emulator (make test-arm64).
#if defined(WEFT_TEST_EMULATED)
inline constexpr bool kSlow = true;
#else
inline constexpr bool kSlow = kSanitized;
#endif

// The most address space of an arena: ranks of one process share what the thread sanitizer leaves to it,
// 1.5 TiB, and each maps the arenas of all.
inline constexpr uint64_t kMostArenaBytes = kThreadSanitizer ? uint64_t{1} << 30 : UINT64_MAX;

}  // namespace weft::test
