// How collectives of blocks of different sizes are made of ordinary ones. Called by variable.cpp.
#pragma once

#include <memory>

#include "core/program.h"

namespace weft::coll {

// Whether to pad the blocks of an all_gather_v to the longest would more than double what travels, and
// matters: then variable_program makes of it what works on device memory as well.
bool skewed(const CollectiveArgs& args, int size);

// args is complete but for the program, and copied. executes: the lane does the collective itself, once it is
// known that the ranks agree.
std::unique_ptr<Program> variable_program(const CollectiveArgs& args, int rank, int size, bool executes);

}  // namespace weft::coll
