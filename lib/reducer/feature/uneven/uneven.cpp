#include "reducer/feature/uneven/uneven.h"

#include <memory>
#include <vector>

#include "reducer/state.h"
#include "reducer/step/step_exchange.h"

namespace weft {
namespace {

class HandshakeExchange final : public StepExchange {
 public:
  explicit HandshakeExchange(const ReducerState& state)
      : s_(state), records_(static_cast<size_t>(state.comm->size())) {}

  const char* name() const override { return "handshake"; }
  void start(StepContext& step) override { step.opened = step.fixed = false; }
  bool ready(const StepContext& /*step*/) const override { return true; }
  void fill(StepContext& step, CollectiveArgs* args) override {
    args->src = reinterpret_cast<const std::byte*>(&step.begun.record);
    args->dst = reinterpret_cast<std::byte*>(records_.data());
  }
  Status completed(StepContext& step) override {
    const Status judged = decide_handshake(records_, s_.comm->rank(), s_.rules, &step.handshake);
    step.opened = judged.ok() && step.handshake.outcome == StepOutcome::kReduce;
    if (step.opened && s_.copy_factor) s_.copy_factor->know(step.stamp, step.handshake.factor);
    step.fixed = step.begun.fixed && step.handshake.fixed;
    return judged;
  }
  const char* awaited() const override { return "not every rank has begun the step"; }
  uint64_t memory_bytes() const override {
    return sizeof *this + records_.capacity() * sizeof(HandshakeRecord);
  }

 private:
  const ReducerState& s_;
  std::vector<HandshakeRecord> records_;  // of all ranks
};

void add_handshake(ReducerState* s) {
  if (!s->has(WEFT_REDUCER_UNEVEN)) return;
  Slot slot = Slot::of_step(Coll::kAllGather, Dtype::kU8, sizeof(HandshakeRecord));
  slot.numbered = false;  // the records contain the step
  slot.exchange = s->exchanges.emplace_back(std::make_unique<HandshakeExchange>(*s)).get();
  s->schedule.put_first({slot});
}

}  // namespace

const StepFeature kUneven{.flag = {WEFT_NAMED(WEFT_REDUCER_UNEVEN)}, .exchanges = add_handshake};

}  // namespace weft
