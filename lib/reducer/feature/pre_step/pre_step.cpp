#include "reducer/feature/pre_step/pre_step.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "reducer/feature/pre_step/await_pre_step.h"
#include "reducer/step/step_exchange.h"

namespace weft {
namespace {

// Compares the ranks' digests: if they differ, the step is not reduced. Ranks that have joined are skipped.
// They update nothing, so their values may be old.
class CompareExchange final : public StepExchange {
 public:
  explicit CompareExchange(const ReducerState& state)
      : pre_step_(*state.pre_step), digests_(static_cast<size_t>(state.comm->size())) {}

  const char* name() const override { return "comparison of values"; }
  void start(StepContext& step) override { step.compared = left_out(step); }
  bool ready(const StepContext& step) const override { return step.opened; }
  bool left_out(const StepContext& step) const override { return !pre_step_.compares(step.begun.number); }
  void fill(StepContext& step, CollectiveArgs* args) override {
    args->src = reinterpret_cast<const std::byte*>(&step.begun.digest);
    args->dst = reinterpret_cast<std::byte*>(digests_.data());
  }
  Status completed(StepContext& step) override {
    const std::vector<int>& joined = step.handshake.joined;
    int first = -1;
    for (size_t r = 0; r < digests_.size(); r++) {
      const int rank = static_cast<int>(r);
      if (std::binary_search(joined.begin(), joined.end(), rank)) continue;
      if (first < 0) first = rank;
      if (digests_[r] != digests_[static_cast<size_t>(first)]) step.handshake.outcome = StepOutcome::kDiffers;
    }
    step.compared = step.handshake.outcome == StepOutcome::kReduce;
    return {};
  }
  const char* awaited() const override { return "not every rank has compared its values (check_interval)"; }
  uint64_t memory_bytes() const override { return sizeof *this + digests_.capacity() * sizeof(uint64_t); }

 private:
  const PreStep& pre_step_;
  std::vector<uint64_t> digests_;  // of all ranks
};

class BuffersExchange final : public StepExchange {
 public:
  const char* name() const override { return "buffers"; }
  BuffersExchange(const ReducerState& state, size_t chunk) : s_(state), chunk_(chunk) {}

  bool ready(const StepContext& step) const override { return step.opened && step.compared; }
  bool left_out(const StepContext& step) const override { return root(step) < 0; }  // no rank has data
  void fill(StepContext& step, CollectiveArgs* args) override {
    args->peer = root(step);
    args->src = args->dst = s_.pre_step->memory(s_.manifest, chunk_);
  }
  const char* awaited() const override { return "the broadcast of buffers has not completed"; }
  uint64_t memory_bytes() const override { return sizeof *this; }

 private:
  int root(const StepContext& step) const { return s_.pre_step->root(step.handshake, s_.comm->size()); }

  const ReducerState& s_;
  const size_t chunk_;
};

void add_pre_step(ReducerState* s) {
  if (!s->pre_step) return;
  std::vector<Slot> slots;
  const auto add = [&](Slot slot, std::unique_ptr<StepExchange> exchange) {
    slot.exchange = s->exchanges.emplace_back(std::move(exchange)).get();
    slots.push_back(slot);
  };
  if (s->pre_step->compares())
    add(Slot::of_step(Coll::kAllGather, Dtype::kU64, 1), std::make_unique<CompareExchange>(*s));
  const std::vector<Chunk>& chunks = s->pre_step->chunks();
  for (size_t i = 0; i < chunks.size(); i++) {
    Slot slot = Slot::of_step(Coll::kBroadcast, Dtype::kU8, chunks[i].bytes);
    slot.counted = false;
    add(slot, std::make_unique<BuffersExchange>(*s, i));
  }
  s->schedule.put_first(slots);
}

void open_pre_step(ReducerData& r, bool /*full*/) {
  const ReducerState& s = *r.state;
  if (!s.pre_step) return;
  StepStart& start = r.program.start;
  const bool may_be_root =
      s.pre_step->may_be_root(s.comm->rank(), start.record.has(HandshakeRecord::kData), s.comm->size());
  start.digest = s.pre_step->open(s.manifest, *s.buckets, start.number, may_be_root);
}

}  // namespace

const StepFeature kPreStep{.exchanges = add_pre_step, .open = open_pre_step, .await_open = await_pre_step};

}  // namespace weft
