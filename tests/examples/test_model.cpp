// The demo's network: its gradients are the slopes of the loss, and it is deterministic.
#include <cmath>
#include <vector>

#include "model.h"
#include "support/catch.h"

namespace {

constexpr uint32_t kBatch = 16;

void fill(Model& model, uint64_t seed) {
  SplitMix64 random(seed);
  for (uint32_t i = 0; i < kBatch * kPixels; ++i)
    model.pixels()[i] = static_cast<float>(random.uniform() - 0.5);
  for (uint32_t i = 0; i < kBatch; ++i) model.labels()[i] = static_cast<uint8_t>(random.below(kClasses));
}

}  // namespace

TEST_CASE("gradients are the slopes of the loss") {
  Model model(3, kBatch);
  fill(model, 4);
  model.forward(kBatch);
  model.backward(kBatch, [](uint64_t) {});
  SplitMix64 random(5);
  for (Param& param : model.params()) {
    // Along a random direction, so that rounding is small compared with the difference.
    std::vector<float> direction(param.count), before(param.value, param.value + param.count);
    double slope = 0;
    for (uint64_t i = 0; i < param.count; ++i) {
      direction[i] = param.gradient[i] + 1e-3f * static_cast<float>(random.uniform() - 0.5);
      slope += static_cast<double>(direction[i]) * static_cast<double>(param.gradient[i]);
    }
    const auto loss_at = [&](float step) {
      for (uint64_t i = 0; i < param.count; ++i) param.value[i] = before[i] + step * direction[i];
      return static_cast<double>(model.forward(kBatch).loss);
    };
    constexpr float kStep = 2e-3f;
    const double measured = (loss_at(kStep) - loss_at(-kStep)) / (2 * static_cast<double>(kStep));
    loss_at(0);
    INFO(param.name << ": " << slope << " against " << measured);
    CHECK(std::abs(slope - measured) < 0.02 * std::abs(slope) + 1e-4);
  }
}

TEST_CASE("backward announces every parameter once, the last layer first") {
  Model model(1, kBatch);
  fill(model, 1);
  model.forward(kBatch);
  std::vector<uint64_t> order;
  model.backward(kBatch, [&](uint64_t index) { order.push_back(index); });
  REQUIRE(order.size() == model.params().size());
  for (size_t i = 0; i < order.size(); ++i) CHECK(order[i] == order.size() - 1 - i);
}

TEST_CASE("equal seeds and images give equal bits, also with gradients in other, unaligned memory") {
  Model one(7, kBatch), other(7, kBatch);
  Floats memory = make_floats(other.value_count() + 1);
  float* elsewhere = memory.get() + 1;
  for (Param& param : other.params()) {
    param.gradient = elsewhere;
    elsewhere += param.count;
  }
  for (uint64_t step = 0; step < 5; ++step) {
    for (Model* model : {&one, &other}) {
      fill(*model, step);
      model->forward(kBatch);
      model->backward(kBatch, [](uint64_t) {});
      model->step(0.1f);
    }
  }
  CHECK(one.hash() == other.hash());
  CHECK(one.hash() != Model(8, kBatch).hash());
}
