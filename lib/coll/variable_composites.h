// Composes collectives of blocks of different sizes from ordinary ones. Called by variable.cpp.
#pragma once

#include <memory>

#include "engine/composite.h"

namespace weft::coll {

// True if padding the blocks of an all_gather_v to the longest would more than double the bytes sent, and the
// size is large enough to matter. variable_composite then returns a composite operation that also works on
// device memory.
bool skewed(const CollectiveArgs& args, int size);

// Makes the composite operation. It copies args, which is complete except for `composite`. executes: the lane
// executes the collective itself once the ranks have compared their counts.
std::unique_ptr<Composite> variable_composite(const CollectiveArgs& args, int rank, int size, bool executes);

}  // namespace weft::coll
