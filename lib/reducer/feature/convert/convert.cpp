#include "reducer/feature/convert/convert.h"

#include <algorithm>

#include "comm/context.h"
#include "reducer/bucket/bucket_work.h"
#include "reducer/state.h"

namespace weft {
namespace {

class ConvertWork final : public BucketWork {
 public:
  explicit ConvertWork(const ReducerState& state) : s_(state) {}

  const char* name() const override { return "scale and convert"; }
  void begin(const StepContext& /*step*/, uint32_t /*bucket*/) override { at_ = 0; }
  Progress piece(StepContext& step, uint32_t bucket) override {
    const HookedBucket& hooked = s_.schedule.buckets[bucket];
    if (step.begun.fresh && hooked.copies_narrow) return Progress::kDone;  // the copy did that
    const PlannedBucket& planned = s_.plan.buckets[bucket];
    const Dtype held = s_.buckets->held(bucket), comm_dtype = s_.comm_dtype(bucket);
    const uint64_t element = dtype_size(held), count = planned.count;
    const double factor = step.handshake.factor;
    const bool wider = dtype_size(comm_dtype) > element, converts = held != comm_dtype;
    if (factor == 1 && !converts) return Progress::kDone;
    const DeviceOps& ops = s_.comm->context().host();
    std::byte* const buffer = s_.buckets->buffers()[bucket];
    for (uint64_t left = kPieceBytes / element; at_ < count;) {
      const CopyFactor::Range next = s_.copy_factor ? s_.copy_factor->range(planned, at_, step.stamp)
                                                    : CopyFactor::Range{count - at_, false};
      const bool passes = next.done && !converts;
      const uint64_t n = passes ? next.count : std::min(left, next.count);
      if (n == 0) return Progress::kMore;
      if (hooked.cast_to) {
        // The product is rounded to the storage dtype, as in the copy.
        if (factor != 1 && !next.done) convert_in_place(ops, buffer, held, held, at_, n, factor);
        convert_in_place(ops, buffer, held, comm_dtype, at_, n, 1.0 / step.handshake.divisor);
      } else if (!passes) {
        convert_in_place(ops, buffer, held, comm_dtype, wider ? count - at_ - n : at_, n, factor);
      }
      if (!passes) left -= n;
      at_ += n;
    }
    return Progress::kDone;
  }

 private:
  const ReducerState& s_;
  uint64_t at_ = 0;  // elements converted, or passed over
};

void add_convert_work(ReducerState* s) {
  const bool weighs = s->options.divide_by == WEFT_DIVIDE_WEIGHTS;
  BucketWork* const work = s->works.make<ConvertWork>(*s);
  for (uint32_t b = 0; b < s->works.prepare.size(); b++) {
    if (s->device_bucket(b) || s->plan.buckets[b].sparse) continue;
    if (weighs || s->buckets->held(b) != s->comm_dtype(b)) s->works.prepare[b].push_back(work);
  }
}

}  // namespace

const StepFeature kConvert{.works = add_convert_work};

}  // namespace weft
