// The same training in one process and without Weft, as the reference for the ranks' results.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data.h"
#include "options.h"

// Trains one model on the micro-batches of several ranks; `hosts` has the host of each rank. Every step adds
// the gradients of each host's ranks in rank order, then the hosts' sums in the order of hosts. It scales the
// sum by 1/ranks once, and updates. Weft averages in the same way, so its ranks get the same bits. losses
// receives every step's losses, by rank. Returns the hash of the final parameters.
uint64_t train_reference(const Options& options, const Dataset& data, const std::vector<int>& hosts,
                         const std::function<void(uint32_t step, const float* losses)>& losses);
