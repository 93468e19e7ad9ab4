// Catch2 2.13 and 3, whichever is installed.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>  // IWYU pragma: export
#define WEFT_CATCH2_V3 1
using Catch::Approx;
#else
#include <catch2/catch.hpp>  // IWYU pragma: export
#define WEFT_CATCH2_V3 0
#endif
