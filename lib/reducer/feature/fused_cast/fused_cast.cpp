#include "reducer/feature/fused_cast/fused_cast.h"

#include "comm/context.h"
#include "reducer/bucket/dense_copy.h"
#include "reducer/state.h"
#include "reducer/step/passed_stages.h"

namespace weft {
namespace {

// True if the copies can do the cast of the hook. The hook casts other dtypes than f32 from the communication
// dtype, which is not always the gradients' dtype.
bool copies_can_cast(const ReducerState& s, const Slot& slot) {
  const PlannedBucket& planned = s.plan.buckets[slot.bucket];
  return slot.whole() && !planned.on_device() && planned.dtype == Dtype::kF32 &&
         !rounds(planned.gradients, planned.dtype);
}

class FusedCopy final : public CopyIn {
 public:
  const char* name() const override { return "copy and narrow"; }
  void copy(ReducerState& s, const Arrival& arrival) override {
    const Buckets::Place to = place_in(s, arrival.param, true);
    flatten(s, arrival, to, s.schedule.buckets[to.bucket].cast_to ? 1.0 / s.fresh_divisor : 1);
    note_destination(s, arrival);
  }
};

// Marks the buckets whose copies narrow. Their collective moves from the hook's scratch to the same offsets
// of the bucket, and so do the parts into which sharding divides it.
void mark_fused_casts(ReducerState* s) {
  if (!s->copy) return;
  for (Slot& slot : s->schedule.slots) {
    if (!s->hook->cast_dtype() || !slot.of_bucket() || !copies_can_cast(*s, slot)) continue;
    HookedBucket& hooked = s->schedule.buckets[slot.bucket];
    hooked.cast_to = s->hook->cast_dtype();
    hooked.scratch_bytes = hooked.result_offset = 0;
    hooked.result_space = WEFT_SPACE_BUCKET;
    slot.space = {WEFT_SPACE_BUCKET, WEFT_SPACE_BUCKET};
  }
  for (uint32_t b = 0; b < s->plan.buckets.size(); b++) {
    const PlannedBucket& planned = s->plan.buckets[b];
    const Dtype held = s->buckets->held(b);
    s->schedule.buckets[b].copies_narrow = !planned.sparse && !planned.on_device() &&
                                           held != s->comm_dtype(b) && !rounds(planned.gradients, held);
  }
}

void add_fused_copies(ReducerState* s) {
  CopyIn* const fused = s->copy_ins.make<FusedCopy>();
  for (uint32_t b = 0; b < s->plan.buckets.size(); b++) {
    if (!s->schedule.buckets[b].copies_narrow) continue;
    for (const uint32_t param : s->plan.buckets[b].params)
      s->copy_ins.change(param, [&](GradientWay& way) { way.set(StepKind::kFresh, fused); });
  }
}

// The copies do the work of the hook's stages.
void pass_stages(ReducerState* s) {
  const auto passed = std::make_shared<PassedStages>(*s, false);
  for (uint32_t b = 0; b < s->stages.size(); b++) {
    if (s->schedule.buckets[b].cast_to) s->stages[b] = passed;
  }
}

}  // namespace

const StepFeature kFusedCast{
    .narrow_copies = mark_fused_casts, .copies = add_fused_copies, .stages = pass_stages};

}  // namespace weft
