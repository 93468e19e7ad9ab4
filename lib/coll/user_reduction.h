// A reduction by a function of the program (WEFT_OP_USER), composed of an all_to_all, the program's function,
// and a gather of the results.
#pragma once

#include <weft/weft.h>

#include <memory>

#include "engine/composite.h"

namespace weft::coll {

// Makes the composite operation of an all_reduce, reduce or reduce_scatter of host memory. It copies both
// arguments; args.count is a multiple of how.unit, which is at least 1. The function is called under the
// progress lock, for about a megabyte between two polls.
std::unique_ptr<Composite> user_reduction(const CollectiveArgs& args, const weft_reduction& how, int rank,
                                          int size);

}  // namespace weft::coll
