// Catch2 2.13 and 3, whichever is installed, and what both lack. Included by every Catch2 test.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>  // IWYU pragma: export
#define WEFT_CATCH2_V3 1
using Catch::Approx;
#else
#include <catch2/catch.hpp>  // IWYU pragma: export
#define WEFT_CATCH2_V3 0
#endif

#include <string>

namespace weft::test {

// Why the running test case was skipped; empty if it was not. Read by the listener in support/main.cpp.
inline std::string skip_reason;

[[noreturn]] inline void skip(const std::string& why) {
  skip_reason = why;
#ifdef SKIP
  SKIP(why);
#else
  throw Catch::TestFailureException();  // ends the test case; without a failed assertion it is no failure
#endif
#if WEFT_CATCH2_V3
  throw;  // unreachable: SKIP always throws, but is not declared so
#endif
}

}  // namespace weft::test

// End the running test case, also from a helper, and count it as skipped; `make test` prints why.
#define WEFT_SKIP(why) ::weft::test::skip(why)
