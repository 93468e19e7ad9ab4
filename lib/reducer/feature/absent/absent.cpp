#include "reducer/feature/absent/absent.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "reducer/bucket/bucket_work.h"
#include "reducer/state.h"
#include "reducer/step/step_exchange.h"

namespace weft {
namespace {

class AbsentMap final : public StepExchange {
 public:
  explicit AbsentMap(const ReducerState& state)
      : presence_(*state.presence), buckets_(static_cast<uint32_t>(state.plan.buckets.size())) {}

  const char* name() const override { return "absent parameters"; }
  bool ready(const StepContext& step) const override { return step.launched == buckets_; }
  // Where all ranks declared their absent parameters fixed, each knows the map.
  bool left_out(const StepContext& step) const override { return step.fixed; }
  void fill(StepContext& step, CollectiveArgs* args) override {
    presence_.map(step.stamp);
    args->src = reinterpret_cast<const std::byte*>(presence_.here().data());
    args->dst = reinterpret_cast<std::byte*>(presence_.anywhere().data());
  }
  Status completed(StepContext& step) override {
    step.mapped = true;
    return {};
  }
  const char* awaited() const override { return "the exchange of absent parameters has not completed"; }
  uint64_t memory_bytes() const override { return sizeof *this; }

 private:
  Presence& presence_;
  const uint32_t buckets_;
};

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

void add_absent_map(ReducerState* s) {
  if (!s->has(WEFT_REDUCER_ABSENT)) return;
  Slot slot = Slot::of_step(Coll::kAllReduce, Dtype::kU64, Presence::words(s->manifest.params.size()));
  slot.args.op = ReduceOp::kBor;
  slot.exchange = s->exchanges.emplace_back(std::make_unique<AbsentMap>(*s)).get();
  // All gradients are ready or absent by then, and the map delays only the last bucket.
  s->schedule.put_before_last_bucket(slot);
}

void add_absent_work(ReducerState* s) {
  // Any step may begin with WEFT_BEGIN_FIXED.
  BucketWork* const work = s->works.make<AbsentWork>(*s);
  for (std::vector<BucketWork*>& list : s->works.prepare) list.push_back(work);
}

}  // namespace

const StepFeature kAbsent{
    .flag = {WEFT_NAMED(WEFT_REDUCER_ABSENT)}, .exchanges = add_absent_map, .works = add_absent_work};

}  // namespace weft
