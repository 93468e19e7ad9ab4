#include "reducer/features.h"

#include <algorithm>
#include <iterator>

#include "reducer/bucket/dense.h"
#include "reducer/feature_list.h"
#include "reducer/state.h"
#include "reducer/step/hook_stages.h"

namespace weft {
namespace {

// The reducer's own parts come first, because features replace the copies of one and the stages of the other.
constexpr const StepFeature* kFeatures[] = {&kDense, &kHooked, WEFT_REDUCER_FEATURES};

void call_all(void (*StepFeature::*function)(ReducerState*), ReducerState* state) {
  for (const StepFeature* const feature : kFeatures) {
    if (feature->*function != nullptr) (feature->*function)(state);
  }
}

}  // namespace

PlanBucket planner_of(const PlannedBucket& bucket) {
  PlanBucket planner = nullptr;
  for (const StepFeature* const feature : kFeatures) {
    if (planner == nullptr && feature->planner != nullptr) planner = feature->planner(bucket);
  }
  return planner;
}

std::vector<ReducerFlag> feature_flags() {
  std::vector<ReducerFlag> flags;
  for (const StepFeature* const feature : kFeatures) {
    if (feature->flag.flag.value != 0) flags.push_back(feature->flag);
  }
  return flags;
}

bool touches_contributions(const ReducerState& state) {
  return std::any_of(std::begin(kFeatures), std::end(kFeatures), [&](const StepFeature* feature) {
    return feature->touches_contributions != nullptr && feature->touches_contributions(state);
  });
}

void add_exchanges(ReducerState* state) {
  call_all(&StepFeature::exchanges, state);
}

void mark_narrow_copies(ReducerState* state) {
  call_all(&StepFeature::narrow_copies, state);
}

void add_copies(ReducerState* state) {
  state->copy_ins.resize(state->manifest.params.size());
  call_all(&StepFeature::copies, state);
}

void add_works(ReducerState* state) {
  const size_t buckets = state->plan.buckets.size();
  for (BucketWorks::List* list : {&state->works.prepare, &state->works.review, &state->works.give_back})
    list->resize(buckets);
  call_all(&StepFeature::works, state);
}

void add_stages(ReducerState* state) {
  state->stages.resize(state->plan.buckets.size());
  call_all(&StepFeature::stages, state);
}

void forget_marks(const ReducerState& state, uint32_t stamp) {
  for (const StepFeature* const feature : kFeatures) {
    if (feature->forget != nullptr) feature->forget(state, stamp);
  }
}

Status end_between_steps(ReducerData& r) {
  for (const StepFeature* const feature : kFeatures) {
    if (feature->before_step != nullptr) WEFT_TRY(feature->before_step(r));
  }
  return {};
}

void open_features(ReducerData& r, bool full) {
  for (const StepFeature* const feature : kFeatures) {
    if (feature->open != nullptr) feature->open(r, full);
  }
}

Status await_open_features(ReducerData& r, int64_t timeout_ms) {
  for (const StepFeature* const feature : kFeatures) {
    if (feature->await_open != nullptr) WEFT_TRY(feature->await_open(r, timeout_ms));
  }
  return {};
}

}  // namespace weft
