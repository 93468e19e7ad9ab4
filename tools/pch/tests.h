// Precompiled for tests: mostly Catch2's header.
#ifndef WEFT_PCH_TESTS_H
#define WEFT_PCH_TESTS_H

#include "standard.h"
#include "support/catch.h"

#endif
