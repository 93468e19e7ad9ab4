#include "reducer/feature/absent/absent.h"

#include <algorithm>
#include <vector>

#include "reducer/bucket/bucket_work.h"
#include "reducer/state.h"

namespace weft {
namespace {

class AbsentWork final : public BucketWork {
 public:
  explicit AbsentWork(const ReducerState& state) : s_(state) {}

  const char* name() const override { return "clear absent parameters"; }
  Progress piece(StepContext& step, uint32_t bucket) override {
    const std::vector<uint32_t>& params = s_.plan.buckets[bucket].params;
    const auto absent = [&](uint32_t param) { return s_.presence->absent(param, step.stamp); };
    for (size_t i = 0; step.begun.zeros && i < params.size(); i++) {
      if (absent(params[i])) clear_place(s_.buckets->place(params[i]));
    }
    if (!s_.has(WEFT_REDUCER_ABSENT) && !step.begun.fixed) return Progress::kDone;
    StepContext::Bucket& here = step.buckets[bucket];
    here.absent = static_cast<uint32_t>(std::count_if(params.begin(), params.end(), absent));
    here.skipped = step.fixed && here.absent == params.size();
    return here.skipped ? Progress::kOver : Progress::kDone;
  }

 private:
  const ReducerState& s_;
};

}  // namespace

void add_absent_work(ReducerState* s) {
  // Any step may begin with WEFT_BEGIN_FIXED.
  BucketWork* const work = s->works.make<AbsentWork>(*s);
  for (std::vector<BucketWork*>& list : s->works.prepare) list.push_back(work);
}

const StepFeature kAbsent{.exchanges = add_absent_map, .works = add_absent_work};

}  // namespace weft
