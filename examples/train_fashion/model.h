// A multi-layer perceptron for Fashion-MNIST: forward, backward, stochastic gradient descent. It does not
// depend on ranks: backward calls a callback when a parameter's gradient is complete, the last layer's first.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data.h"

// Aligned memory for floats. Eigen's results may depend on alignment; the reference run needs equal bits.
using Floats = std::unique_ptr<float[], void (*)(float*)>;
Floats make_floats(uint64_t count);

struct Param {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t count = 0;
  float* value = nullptr;
  float* gradient = nullptr;  // of the last backward; may be set to other memory (a reducer's view)
  float* momentum = nullptr;
};

struct BatchResult {
  float loss = 0;  // mean cross-entropy
  uint32_t correct = 0;
};

class Model {
 public:
  // Draws weights from the seed (He initialisation). At most max_batch images at a time.
  Model(uint64_t seed, uint32_t max_batch);

  // Parameters in the order of definition: layer by layer, weight then bias.
  std::vector<Param>& params() { return params_; }
  uint64_t value_count() const { return value_count_; }
  // The inputs of the next forward, filled by the caller.
  float* pixels() { return layers_.front().input; }
  uint8_t* labels() { return labels_.data(); }

  BatchResult forward(uint32_t batch);
  // Computes the gradients of the last forward's mean loss. ready(p): params()[p].gradient is complete.
  void backward(uint32_t batch, const std::function<void(uint64_t)>& ready);
  // SGD with momentum and weight decay, in a fixed order of operations.
  void step(float rate);
  uint64_t hash() const;  // of all values' bits

 private:
  struct Layer {
    uint32_t in, out;
    uint64_t weight;  // its index in params_; the bias follows
    float* input;     // max_batch x in
    float* delta;     // max_batch x out: the loss's derivative by this layer's sums
  };
  void apply(const Layer& layer, uint32_t batch, float* output, bool last);

  std::vector<Layer> layers_;
  std::vector<Param> params_;
  std::vector<Floats> memory_;
  std::vector<uint8_t> labels_;
  float* logits_ = nullptr;  // max_batch x kClasses
  float* values_ = nullptr;  // of all parameters
  uint64_t value_count_ = 0;
};

uint64_t hash_bytes(const void* data, uint64_t size);
