// The same training in one process and without Weft: what the ranks' results are compared with.
#pragma once

#include <cstdint>
#include <functional>

#include "data.h"
#include "options.h"

// Train one model on the micro-batches of `ranks` ranks: every step adds their gradients in rank order,
// first those of each host's per_host ranks where sums travel between hosts, scales the sum by 1/ranks once,
// and updates. That is how Weft averages, so its ranks get the same bits. losses gets every step's losses, by
// rank. Returns the hash of the final parameters.
uint64_t train_reference(const Options& options, const Dataset& data, int ranks, int per_host,
                         const std::function<void(uint32_t step, const float* losses)>& losses);
