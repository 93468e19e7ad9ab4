#include "reducer/feature/weights/weights.h"

#include "comm/context.h"
#include "reducer/bucket/dense_copy.h"
#include "reducer/state.h"

namespace weft {
namespace {

class WeighedCopy final : public CopyIn {
 public:
  const char* name() const override { return "copy times weight"; }
  void copy(ReducerState& s, const Arrival& arrival) override {
    const double scale =
        s.holds_sum(arrival.param) ? 1 : s.copy_factor->take(arrival.param, arrival.step.stamp());
    flatten(s, arrival, arrival.place, scale);
    note_destination(s, arrival);
  }
};

bool may_multiply(const ReducerState& s, uint32_t bucket) {
  const PlannedBucket& planned = s.plan.buckets[bucket];
  return !planned.sparse && !planned.on_device() && planned.gradients == planned.dtype &&
         s.buckets->held(bucket) == planned.dtype;
}

void add_weighed_copies(ReducerState* s) {
  if (!s->copy || s->touches_contributions || s->options.divide_by != WEFT_DIVIDE_WEIGHTS) return;
  s->copy_factor = std::make_unique<CopyFactor>(s->manifest.params.size());
  CopyIn* const weighed = s->copy_ins.make<WeighedCopy>();
  for (uint32_t b = 0; b < s->plan.buckets.size(); b++) {
    if (!may_multiply(*s, b)) continue;
    for (const uint32_t param : s->plan.buckets[b].params)
      s->copy_ins.change(param, [&](GradientWay& way) { way.set(StepKind::kSynchronised, weighed); });
  }
}

void forget_factors(const ReducerState& s, uint32_t stamp) {
  if (s.copy_factor) s.copy_factor->forget(stamp);
}

}  // namespace

const StepFeature kWeights{.copies = add_weighed_copies, .forget = forget_factors};

}  // namespace weft
