// lib/kernels/instruction_sets.cpp, which replaces Highway's library. It is compiled with another name for
// Highway's namespace, so that both are in this program.
#include "kernels/targets.h"

#include <hwy/targets.h>

#include "support/catch.h"

namespace own_hwy {
int64_t SupportedTargets();
}

TEST_CASE("the kernels use the instruction sets that Highway's library finds") {
  CHECK((own_hwy::SupportedTargets() & HWY_TARGETS) == (hwy::SupportedTargets() & HWY_TARGETS));
}
