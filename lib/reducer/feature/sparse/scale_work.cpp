#include "reducer/feature/sparse/sparse.h"

#include <algorithm>

#include "comm/context.h"
#include "reducer/bucket/bucket_work.h"
#include "reducer/state.h"

namespace weft {
namespace {

class ScaleWork final : public BucketWork {
 public:
  explicit ScaleWork(const ReducerState& state) : s_(state) {}

  const char* name() const override { return "scale entries"; }
  void begin(const StepContext& /*step*/, uint32_t /*bucket*/) override { scaled_ = 0; }
  Progress piece(StepContext& step, uint32_t bucket) override {
    const bool left_alone = s_.copy && step.discarded;
    if (step.sealed || step.buckets[bucket].skipped || left_alone || step.factor == 1) return Progress::kDone;
    const PlannedBucket& planned = s_.plan.buckets[bucket];
    const SparseGradient& gradient = *s_.sparse->of(planned.params.front());
    const uint64_t element = dtype_size(planned.dtype);
    const uint64_t count = std::min(kPieceBytes / element, gradient.result_elements() - scaled_);
    std::byte* const at = gradient.values() + scaled_ * element;
    if (count > 0) s_.comm->context().host().copy({at, at, count, planned.dtype, planned.dtype, step.factor});
    scaled_ += count;
    return scaled_ == gradient.result_elements() ? Progress::kDone : Progress::kMore;
  }

 private:
  const ReducerState& s_;
  uint64_t scaled_ = 0;  // elements
};

}  // namespace

void add_scale_work(ReducerState* s) {
  if (!s->sparse) return;
  BucketWork* const work = s->works.make<ScaleWork>(*s);
  for (uint32_t b = 0; b < s->works.give_back.size(); b++) {
    if (s->plan.buckets[b].sparse) s->works.give_back[b].push_back(work);
  }
}

}  // namespace weft
