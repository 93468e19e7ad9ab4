// What sanitized builds precompile for tests, which for the most part are Catch2's header.
#pragma once

#include "standard.h"
#include "support/catch.h"
