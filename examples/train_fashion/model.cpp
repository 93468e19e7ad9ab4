// Eigen computes matrix products. Everything else consists of loops in a fixed order, because the demo
// compares results bitwise and Eigen's reductions depend on the alignment of memory.
#include "model.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<Matrix>;

View view(float* data, uint64_t rows, uint64_t columns) {
  return {data, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}

constexpr uint32_t kWidths[] = {kPixels, 256, 192, 128, 96, kClasses};
constexpr float kMomentum = 0.9f;
constexpr float kDecay = 1e-4f;

}  // namespace

Floats make_floats(uint64_t count) {
  const uint64_t bytes = (count * sizeof(float) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return {static_cast<float*>(memory), [](float* floats) { std::free(floats); }};
}

uint64_t hash_bytes(const void* data, uint64_t size) {  // FNV-1a
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint64_t hash = 0xcbf29ce484222325u;
  for (uint64_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

Model::Model(uint64_t seed, uint32_t max_batch) : labels_(max_batch) {
  const auto floats = [this](uint64_t count) {
    memory_.push_back(make_floats(count));
    return memory_.back().get();
  };
  constexpr uint32_t layer_count = std::size(kWidths) - 1;
  for (uint32_t i = 0; i < layer_count; ++i) {
    const uint32_t in = kWidths[i];
    const uint32_t out = kWidths[i + 1];
    layers_.push_back(
        {in, out, 2ull * i, floats(uint64_t{max_batch} * in), floats(uint64_t{max_batch} * out)});
    const std::string name = "layer" + std::to_string(i + 1);
    params_.push_back({name + ".weight", {out, in}, uint64_t{out} * in, nullptr, nullptr, nullptr});
    params_.push_back({name + ".bias", {out}, out, nullptr, nullptr, nullptr});
  }
  logits_ = floats(uint64_t{max_batch} * kClasses);
  for (const Param& param : params_) value_count_ += param.count;
  values_ = floats(value_count_);
  float* gradients = floats(value_count_);
  float* momenta = floats(value_count_);
  uint64_t offset = 0;
  SplitMix64 random(seed);
  for (Param& param : params_) {
    param.value = values_ + offset;
    param.gradient = gradients + offset;
    param.momentum = momenta + offset;
    offset += param.count;
    if (param.shape.size() == 1) continue;  // biases start at 0
    const double bound = std::sqrt(6.0 / static_cast<double>(param.shape[1]));
    for (uint64_t i = 0; i < param.count; ++i) {
      param.value[i] = static_cast<float>(bound * (2 * random.uniform() - 1));
    }
  }
}

// Computes output = input * weight^T + bias, with a rectifier except in the last layer.
void Model::apply(const Layer& layer, uint32_t batch, float* output, bool last) {
  const float* bias = params_[layer.weight + 1].value;
  view(output, batch, layer.out).noalias() =
      view(layer.input, batch, layer.in) * view(params_[layer.weight].value, layer.out, layer.in).transpose();
  for (uint32_t row = 0; row < batch; ++row) {
    float* sums = output + uint64_t{row} * layer.out;
    for (uint32_t i = 0; i < layer.out; ++i) {
      const float sum = sums[i] + bias[i];
      sums[i] = last ? sum : std::max(sum, 0.0f);
    }
  }
}

BatchResult Model::forward(uint32_t batch) {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const bool last = i + 1 == layers_.size();
    apply(layers_[i], batch, last ? logits_ : layers_[i + 1].input, last);
  }
  BatchResult result;
  double loss = 0;
  float* delta = layers_.back().delta;
  for (uint32_t row = 0; row < batch; ++row) {  // softmax, cross-entropy, and its derivative
    const float* z = logits_ + row * kClasses;
    float* d = delta + row * kClasses;
    const float* top = std::max_element(z, z + kClasses);
    float total = 0;
    for (uint32_t k = 0; k < kClasses; ++k) total += d[k] = std::exp(z[k] - *top);
    for (uint32_t k = 0; k < kClasses; ++k) d[k] /= total * static_cast<float>(batch);
    d[labels_[row]] -= 1.0f / static_cast<float>(batch);
    loss += static_cast<double>(std::log(total) + *top - z[labels_[row]]);
    result.correct += static_cast<uint32_t>(top - z) == labels_[row];
  }
  result.loss = static_cast<float>(loss / batch);
  return result;
}

void Model::backward(uint32_t batch, const std::function<void(uint64_t)>& ready) {
  for (size_t i = layers_.size(); i-- > 0;) {
    const Layer& layer = layers_[i];
    float* bias = params_[layer.weight + 1].gradient;
    std::fill_n(bias, layer.out, 0.0f);
    for (uint32_t row = 0; row < batch; ++row) {
      for (uint32_t k = 0; k < layer.out; ++k) bias[k] += layer.delta[uint64_t{row} * layer.out + k];
    }
    ready(layer.weight + 1);
    const auto delta = view(layer.delta, batch, layer.out);
    view(params_[layer.weight].gradient, layer.out, layer.in).noalias() =
        delta.transpose() * view(layer.input, batch, layer.in);
    ready(layer.weight);
    if (i == 0) break;
    float* below = layers_[i - 1].delta;
    view(below, batch, layer.in).noalias() = delta * view(params_[layer.weight].value, layer.out, layer.in);
    for (uint64_t k = 0; k < uint64_t{batch} * layer.in; ++k) below[k] = layer.input[k] > 0 ? below[k] : 0.0f;
  }
}

void Model::step(float rate) {
  for (Param& param : params_) {
    for (uint64_t i = 0; i < param.count; ++i) {
      param.momentum[i] = kMomentum * param.momentum[i] + (param.gradient[i] + kDecay * param.value[i]);
      param.value[i] -= rate * param.momentum[i];
    }
  }
}

uint64_t Model::hash() const {
  return hash_bytes(values_, value_count_ * sizeof(float));
}
