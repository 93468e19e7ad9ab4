#include "reference.h"

#include <algorithm>
#include <vector>

#include "model.h"
#include "schedule.h"

namespace {

// Sums the gradients of all parameters: first those of each host in the order of calls, then the hosts' sums.
class Sum {
 public:
  Sum(Model& model, int hosts) : model_(model), filled_(static_cast<size_t>(hosts)) {
    for (int host = 0; host < hosts; ++host) sums_.push_back(make_floats(model.value_count()));
  }

  void begin() { filled_.assign(filled_.size(), false); }

  void add(int host) {
    const auto at = static_cast<size_t>(host);
    float* sum = sums_[at].get();
    for (const Param& param : model_.params()) {
      for (uint64_t i = 0; i < param.count; ++i, ++sum) {
        *sum = filled_[at] ? *sum + param.gradient[i] : param.gradient[i];
      }
    }
    filled_[at] = true;
  }

  void add_hosts() {
    for (size_t host = 1; host < sums_.size(); ++host) {
      for (uint64_t i = 0; i < model_.value_count(); ++i) sums_[0][i] += sums_[host][i];
    }
  }

  void write_mean(int ranks) {
    const float scale = 1.0f / static_cast<float>(ranks);
    const float* sum = sums_[0].get();
    for (const Param& param : model_.params()) {
      for (uint64_t i = 0; i < param.count; ++i) param.gradient[i] = *sum++ * scale;
    }
  }

 private:
  Model& model_;
  std::vector<Floats> sums_;  // by host
  std::vector<bool> filled_;
};

}  // namespace

uint64_t train_reference(const Options& options, const Dataset& data, const std::vector<int>& hosts,
                         const std::function<void(uint32_t step, const float* losses)>& losses) {
  const int ranks = static_cast<int>(hosts.size());
  const Schedule schedule(options, data.count, ranks);
  Model model(options.seed, schedule.batch);
  Sum sum(model, 1 + *std::max_element(hosts.begin(), hosts.end()));
  std::vector<Shard> shards;
  for (int rank = 0; rank < ranks; ++rank) shards.emplace_back(data, rank, ranks, options.seed);
  std::vector<float> step_losses(static_cast<size_t>(ranks));

  for (uint32_t step = 0; step < schedule.total_steps(); ++step) {
    sum.begin();
    for (int rank = 0; rank < ranks; ++rank) {
      Shard& shard = shards[static_cast<size_t>(rank)];
      if (step % schedule.steps == 0) shard.start_epoch(step / schedule.steps);
      shard.batch(step % schedule.steps, schedule.batch, model.pixels(), model.labels());
      step_losses[static_cast<size_t>(rank)] = model.forward(schedule.batch).loss;
      model.backward(schedule.batch, [](uint64_t) {});
      sum.add(hosts[static_cast<size_t>(rank)]);
    }
    sum.add_hosts();
    sum.write_mean(ranks);
    model.step(schedule.rate(step));
    losses(step, step_losses.data());
  }
  return model.hash();
}
