// Makes the buckets of another plan and moves the gradients into them. Used by Reducer's re-plan and rebind,
// between steps. It is constructed before the ranks agree that all of them can, and run after it. Threads:
// one thread at a time.
#pragma once

#include <vector>

#include "device/arena.h"
#include "reducer/plan/relayout.h"
#include "reducer/state.h"

namespace weft {

class Relocation {
 public:
  // Gives `next`, which has another plan than `old`, buckets in the memory of old's buckets. Sets
  // next->buckets to null if they do not fit there, or if the scratch cannot be allocated. They are then
  // allocated separately.
  Relocation(const ReducerState& old, ReducerState* next);
  // Moves the values that gradients have in views, or that local steps have accumulated. `next` must have
  // buckets.
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
