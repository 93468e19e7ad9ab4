// Checks the counts that ranks exchange before a collective whose size each rank knows only for itself. Used
// by Step (dynamic collectives of hooks) and SparseGradient, under the engine's progress lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/text.h"

namespace weft {

// counts: one per rank, from other processes. kMismatch names a rank whose count exceeds `most`.
inline Status judge_counts(const std::vector<uint64_t>& counts, uint64_t most, uint64_t* largest) {
  const auto over = std::find_if(counts.begin(), counts.end(), [&](uint64_t count) { return count > most; });
  if (over != counts.end()) {
    const auto rank = static_cast<int>(over - counts.begin());
    return Status::error(Code::kMismatch, cat("rank ", rank, " published a count of ", *over,
                                              " for this collective; at most ", most, " is allowed"))
        .with_ranks({rank});
  }
  *largest = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  return {};
}

}  // namespace weft
