// Includes Catch2 2.13 or 3, whichever is installed, and adds WEFT_SKIP, which both lack. Every Catch2 test
// includes this file.
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

// The reason for which the running test case was skipped; empty if it was not. The listener in
// support/main.cpp reads it.
inline std::string skip_reason;

[[noreturn]] inline void skip(const std::string& why) {
  skip_reason = why;
#ifdef SKIP
  SKIP(why);
#else
  throw Catch::TestFailureException();  // ends the test case; it is no failure, because no assertion failed
#endif
#if WEFT_CATCH2_V3
  throw;  // unreachable: SKIP always throws, but is not declared so
#endif
}

}  // namespace weft::test

// Ends the running test case, also from a helper function, and counts it as skipped. `make test` prints the
// reason.
#define WEFT_SKIP(why) ::weft::test::skip(why)
