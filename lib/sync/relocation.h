// The buckets of another plan, and the gradients' way into them. Used by Reducer's re-plan and rebind,
// between steps: made before the ranks agree that they all can, run after it. Threads: one thread at a time.
#pragma once

#include <vector>

#include "core/arena.h"
#include "sync/relayout.h"
#include "sync/state.h"

namespace weft {

class Relocation {
 public:
  // Gives `next`, which has another plan than `old`, buckets in the memory of old's; none where they do not
  // fit, or without memory for the scratch: they are then made beside the old ones.
  Relocation(const ReducerState& old, ReducerState* next);
  // Once next has buckets: the values that gradients have in views, or that local steps have added up.
  void run();

 private:
  void list_moves();

  const ReducerState& old_;
  ReducerState& next_;
  std::vector<Move> moves_;
  HeapArena arena_;
  std::byte* scratch_ = nullptr;
};

}  // namespace weft
