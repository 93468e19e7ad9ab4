// The same training in one process and without Weft: what the ranks' results are compared with.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data.h"
#include "options.h"

// Train one model on the micro-batches of some ranks, for each of which `hosts` says on which host it is:
// every step adds the gradients of each host's ranks in rank order, then the hosts' sums in the order of
// hosts, scales the sum by 1/ranks once, and updates. That is how Weft averages, so its ranks get the same
// bits. losses gets every step's losses, by rank. Returns the hash of the final parameters.
uint64_t train_reference(const Options& options, const Dataset& data, const std::vector<int>& hosts,
                         const std::function<void(uint32_t step, const float* losses)>& losses);
