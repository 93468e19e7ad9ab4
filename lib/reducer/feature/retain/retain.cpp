#include "reducer/feature/retain/retain.h"

#include <algorithm>

#include "reducer/bucket/bucket_work.h"
#include "reducer/state.h"

namespace weft {
namespace {

class RetainWork final : public BucketWork {
 public:
  explicit RetainWork(const ReducerState& state) : s_(state) {}

  const char* name() const override { return "retain"; }
  void begin(const StepContext& /*step*/, uint32_t /*bucket*/) override { bytes_ = 0; }
  Progress piece(StepContext& step, uint32_t bucket) override {
    const uint64_t all = s_.plan.buckets[bucket].count * dtype_size(s_.buckets->held(bucket));
    const uint64_t n = std::min(kPieceBytes, all - bytes_);
    std::copy_n(s_.buckets->buffers()[bucket] + bytes_, n, s_.buckets->retained(bucket) + bytes_);
    bytes_ += n;
    if (bytes_ < all) return Progress::kMore;
    step.buckets[bucket].retained = true;
    return Progress::kDone;
  }

 private:
  const ReducerState& s_;
  uint64_t bytes_ = 0;  // copied
};

bool retains(const ReducerState& s) {
  return s.has(WEFT_REDUCER_RETAIN);
}

void add_retain_work(ReducerState* s) {
  if (!retains(*s)) return;
  BucketWork* const work = s->works.make<RetainWork>(*s);
  for (uint32_t b = 0; b < s->works.prepare.size(); b++) {
    if (!s->device_bucket(b) && s->buckets->retained(b) != nullptr) s->works.prepare[b].push_back(work);
  }
}

}  // namespace

const StepFeature kRetain{
    .flag = {WEFT_NAMED(WEFT_REDUCER_RETAIN)}, .touches_contributions = retains, .works = add_retain_work};

}  // namespace weft
