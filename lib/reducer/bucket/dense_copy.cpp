#include "reducer/bucket/dense_copy.h"

#include "core/context.h"
#include "reducer/bucket/dense.h"

namespace weft {
namespace {

// The program hands over the gradient's sum later, or has it in the view.
void copy_nothing(ReducerState& /*s*/, const Arrival& /*arrival*/) {}

void copy_dense(ReducerState& s, const Arrival& arrival) {
  flatten(s, arrival, arrival.place, 1);
  note_destination(s, arrival);
}

// In view mode only a gradient outside its view is copied.
void copy_stray(ReducerState& s, const Arrival& arrival) {
  const void* const data = arrival.given.data;
  if (data != nullptr && data != arrival.place.memory) flatten(s, arrival, arrival.place, 1);
}

}  // namespace

// Gives each dense parameter in host memory the copy that its mode needs.
void add_dense_copies(ReducerState* s) {
  for (uint64_t i = 0; i < s->manifest.params.size(); i++) {
    s->copy_ins.set_all(i, s->copy ? copy_dense : copy_stray);
    if (s->copy && s->accumulation != WEFT_ACCUMULATION_REDUCER)
      s->copy_ins.set(StepKind::kLocal, i, copy_nothing);
  }
}

}  // namespace weft
