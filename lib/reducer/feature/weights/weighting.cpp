#include "reducer/feature/weights/weighting.h"

#include <algorithm>

#include "core/context.h"

#include "reducer/bucket/dense_copy.h"
#include "reducer/state.h"

namespace weft {
namespace {

void copy_weighed(ReducerState& s, const Arrival& arrival) {
  const double scale = s.holds_sum(arrival.param)
                           ? 1
                           : s.weighting->take(arrival.param, arrival.place.bucket, arrival.step.stamp());
  flatten(s, arrival, arrival.place, scale);
  note_destination(s, arrival);
}

}  // namespace

std::unique_ptr<Weighting> Weighting::make(const ReducerState& s) {
  if (!s.copy || s.retain || s.rules.divide_by != WEFT_DIVIDE_WEIGHTS) return nullptr;
  std::unique_ptr<Weighting> made(new Weighting);
  made->marks_.resize(s.manifest.params.size());
  for (uint32_t b = 0; b < s.plan.buckets.size(); b++) {
    const PlannedBucket& planned = s.plan.buckets[b];
    made->buckets_.push_back(!planned.sparse && !planned.on_device() && planned.gradients == planned.dtype &&
                             s.buckets->held(b) == planned.dtype);
  }
  return made;
}

double Weighting::take(uint64_t param, uint32_t bucket, uint32_t stamp) {
  if (!buckets_[bucket] || stamp_.load(std::memory_order_acquire) != stamp) return 1;
  marks_[param] = stamp;
  return factor_.load(std::memory_order_relaxed);
}

Weighting::Range Weighting::range(const PlannedBucket& bucket, uint64_t first, uint32_t stamp) const {
  const auto behind = std::upper_bound(bucket.offsets.begin(), bucket.offsets.end(), first);
  const auto marked = [&](size_t i) { return marks_[bucket.params[i]] == stamp; };
  auto i = static_cast<size_t>(behind - bucket.offsets.begin());  // the next parameter
  const bool done = marked(i - 1);
  while (i < bucket.params.size() && marked(i) == done) i++;
  return {(i < bucket.params.size() ? bucket.offsets[i] : bucket.count) - first, done};
}

namespace {

void add_weighed_copies(ReducerState* s) {
  if (!s->weighting) return;
  for (uint32_t b = 0; b < s->plan.buckets.size(); b++) {
    if (!s->weighting->multiplies(b)) continue;
    for (const uint32_t param : s->plan.buckets[b].params)
      s->copy_ins.set(StepKind::kSynchronised, param, copy_weighed);
  }
}

}  // namespace

const StepFeature kWeights{.copies = add_weighed_copies};

}  // namespace weft
