// Gradients in memory of the program (WEFT_GRADIENT_IN_PLACE): a bucket is the piece of memory in which the
// gradients of its parameters are adjacent. For create_state. Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "reducer/manifest/manifest.h"
#include "reducer/plan/plan.h"

namespace weft {

// Rejects flags that need buckets of Weft's own. kArg.
Status check_in_place_flags(uint64_t flags);
// Rejects gradients that cannot be reduced where they are. kArg without an address, kUnsupported otherwise;
// names the parameter.
Status check_in_place(const Manifest& manifest);
// Cuts the buckets of a plan made by make_plan where gradients are not adjacent.
void cut_in_place(const Manifest& manifest, Plan* plan);
// Rejects a bucket whose gradients are not adjacent. kArg, naming two parameters.
Status check_adjacent(const Manifest& manifest, const Plan& plan);
// Returns where each bucket begins.
std::vector<std::byte*> buckets_in_place(const Manifest& manifest, const Plan& plan);

}  // namespace weft
