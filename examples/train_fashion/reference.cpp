#include "reference.h"

#include <vector>

#include "model.h"
#include "schedule.h"

namespace {

// The gradients of all parameters, added up in the order of calls.
class Sum {
 public:
  explicit Sum(Model& model) : model_(model), sums_(make_floats(model.value_count())) {}

  void add(bool first) {
    float* sum = sums_.get();
    for (const Param& param : model_.params()) {
      for (uint64_t i = 0; i < param.count; ++i, ++sum) {
        *sum = first ? param.gradient[i] : *sum + param.gradient[i];
      }
    }
  }

  void write_mean(int ranks) {
    const float scale = 1.0f / static_cast<float>(ranks);
    const float* sum = sums_.get();
    for (const Param& param : model_.params()) {
      for (uint64_t i = 0; i < param.count; ++i) param.gradient[i] = *sum++ * scale;
    }
  }

 private:
  Model& model_;
  Floats sums_;
};

}  // namespace

uint64_t train_reference(const Options& options, const Dataset& data, int ranks,
                         const std::function<void(uint32_t step, const float* losses)>& losses) {
  const Schedule schedule(options, data.count, ranks);
  Model model(options.seed, schedule.batch);
  Sum sum(model);
  std::vector<Shard> shards;
  for (int rank = 0; rank < ranks; ++rank) shards.emplace_back(data, rank, ranks, options.seed);
  std::vector<float> step_losses(static_cast<size_t>(ranks));

  for (uint32_t step = 0; step < schedule.total_steps(); ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      Shard& shard = shards[static_cast<size_t>(rank)];
      if (step % schedule.steps == 0) shard.start_epoch(step / schedule.steps);
      shard.batch(step % schedule.steps, schedule.batch, model.pixels(), model.labels());
      step_losses[static_cast<size_t>(rank)] = model.forward(schedule.batch).loss;
      model.backward(schedule.batch, [](uint64_t) {});
      sum.add(rank == 0);
    }
    sum.write_mean(ranks);
    model.step(schedule.rate(step));
    losses(step, step_losses.data());
  }
  return model.hash();
}
