#include "sync/straight.h"

namespace weft {
namespace {

// True if the copies can do the cast of the hook. The hook casts other dtypes than f32 from the communication
// dtype, which is not always the gradients' dtype.
bool can_narrow(const ReducerState& s, const Slot& slot) {
  const PlannedBucket& planned = s.plan.buckets[slot.bucket];
  return slot.whole() && !planned.on_device() && planned.dtype == Dtype::kF32 &&
         !rounds(planned.gradients, planned.dtype);
}

}  // namespace

void let_copies_round(ReducerState* s) {
  if (!s->copy) return;
  for (Slot& slot : s->schedule.slots) {
    if (!s->hook->narrows() || !slot.of_bucket() || !can_narrow(*s, slot)) continue;
    HookedBucket& hooked = s->schedule.buckets[slot.bucket];
    hooked.narrow = s->hook->narrows();
    hooked.scratch_bytes = hooked.result_offset = 0;
    hooked.result_space = WEFT_SPACE_BUCKET;
    slot.space = {WEFT_SPACE_BUCKET, WEFT_SPACE_BUCKET};
    slot.offset = {0, 0};
  }
  for (uint32_t b = 0; b < s->plan.buckets.size(); b++) {
    const PlannedBucket& planned = s->plan.buckets[b];
    const Dtype held = s->buckets->held(b);
    s->schedule.buckets[b].straight =
        !planned.sparse && !planned.on_device() && held != s->travels(b) && !rounds(planned.gradients, held);
  }
}

}  // namespace weft
