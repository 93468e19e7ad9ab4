#include "reducer/feature/norms/norms.h"

#include <memory>
#include <vector>

#include "reducer/state.h"
#include "reducer/step/step_exchange.h"

namespace weft {
namespace {

class SumOfNorms final : public StepExchange {
 public:
  explicit SumOfNorms(const ReducerState& state)
      : norms_(*state.norms), buckets_(static_cast<uint32_t>(state.plan.buckets.size())) {}

  const char* name() const override { return "norms"; }
  bool ready(const StepContext& step) const override { return step.reviewed == buckets_; }
  void fill(StepContext& /*step*/, CollectiveArgs* args) override {
    args->src = args->dst = reinterpret_cast<std::byte*>(norms_.sums().data());
  }
  const char* awaited() const override { return "the norms of the ranks' slices are being added up"; }
  uint64_t memory_bytes() const override { return sizeof *this; }

 private:
  Norms& norms_;
  const uint32_t buckets_;
};

class FinishExchange final : public StepExchange {
 public:
  explicit FinishExchange(const ReducerState& state)
      : norms_(*state.norms), requests_(static_cast<size_t>(state.comm->size())) {}

  const char* name() const override { return "requests of finish"; }
  void prepare() override { norms_.prepare(); }
  bool ready(const StepContext& /*step*/) const override { return norms_.request() != nullptr; }
  void fill(StepContext& /*step*/, CollectiveArgs* args) override {
    args->src = reinterpret_cast<const std::byte*>(norms_.request());
    args->dst = reinterpret_cast<std::byte*>(requests_.data());
  }
  Status completed(StepContext& /*step*/) override {
    norms_.receive(&requests_);
    return {};
  }
  const char* awaited() const override { return "not every rank has called finish"; }
  uint64_t memory_bytes() const override {
    return sizeof *this + requests_.capacity() * sizeof(FinishRecord);
  }

 private:
  Norms& norms_;
  std::vector<FinishRecord> requests_;  // of all ranks
};

}  // namespace

void add_norms_exchanges(ReducerState* s) {
  if (!s->norms) return;
  if (s->has(WEFT_REDUCER_SHARDED)) {
    Slot slot = Slot::of_step(Coll::kAllReduce, Dtype::kF64, 2 * s->manifest.params.size());
    slot.exchange = s->exchanges.emplace_back(std::make_unique<SumOfNorms>(*s)).get();
    s->schedule.slots.push_back(slot);
  }
  Slot slot = Slot::of_step(Coll::kAllGather, Dtype::kU8, sizeof(FinishRecord));
  slot.exchange = s->exchanges.emplace_back(std::make_unique<FinishExchange>(*s)).get();
  s->schedule.slots.push_back(slot);
}

const StepFeature kNorms{
    .flag = {WEFT_NAMED(WEFT_REDUCER_NORMS)}, .exchanges = add_norms_exchanges, .works = add_measure_work};

}  // namespace weft
