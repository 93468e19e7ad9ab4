#include "reference.h"

#include <vector>

#include "model.h"
#include "schedule.h"

namespace {

// The gradients of all parameters: those of a host added up in the order of calls, then the hosts' sums.
class Sum {
 public:
  explicit Sum(Model& model)
      : model_(model), host_(make_floats(model.value_count())), sums_(make_floats(model.value_count())) {}

  void add(bool first_of_host) {
    float* sum = host_.get();
    for (const Param& param : model_.params()) {
      for (uint64_t i = 0; i < param.count; ++i, ++sum) {
        *sum = first_of_host ? param.gradient[i] : *sum + param.gradient[i];
      }
    }
  }

  void add_host(bool first_host) {
    for (uint64_t i = 0; i < model_.value_count(); ++i) {
      sums_[i] = first_host ? host_[i] : sums_[i] + host_[i];
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
  Floats host_, sums_;
};

}  // namespace

uint64_t train_reference(const Options& options, const Dataset& data, int ranks, int per_host,
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
      sum.add(rank % per_host == 0);
      if ((rank + 1) % per_host == 0) sum.add_host(rank + 1 == per_host);
    }
    sum.write_mean(ranks);
    model.step(schedule.rate(step));
    losses(step, step_losses.data());
  }
  return model.hash();
}
