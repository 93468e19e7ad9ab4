// Shared by the reducer's tests: a model of named gradients with any layout, values that are the same on
// every run, and the serial reference.
#pragma once

#include <weft/weft.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"
#include "comm/context.h"
#include "hook/hook_table.h"
#include "kernels/host_ops.h"
#include "reducer/manifest/manifest.h"
#include "support/catch.h"
#include "support/ranks.h"
#include "support/reducer.h"

namespace weft::hook_allreduce {
const HookFactory& factory();
}

namespace weft::test {

// Null if it cannot be created; creating the reducer then reports that.
inline std::shared_ptr<Hook> allreduce_hook() {
  std::shared_ptr<Hook> hook;
  static_cast<void>(hook_allreduce::factory().make({{}, nullptr, host_ops()}, &hook));
  return hook;
}

struct TestParam {
  std::string name;
  std::vector<int64_t> shape;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> strides = {};
  uint32_t sparse_ndim = 0;  // of a sparse gradient
};

// A list of parameters, with the memory to which each weft_param points.
class Model {
 public:
  explicit Model(std::vector<TestParam> params) : params_(std::move(params)) {
    for (TestParam& p : params_) {
      if (p.strides.empty()) p.strides = row_major(p.shape);
      weft_param c{};
      c.struct_size = sizeof c;
      c.name = p.name.c_str();
      c.dtype = static_cast<int32_t>(p.dtype);
      c.ndim = static_cast<int32_t>(p.shape.size());
      c.shape = p.shape.data();
      c.strides = p.strides.data();
      c.flags = p.sparse_ndim > 0 ? WEFT_PARAM_SPARSE : 0;
      c.sparse_ndim = p.sparse_ndim;
#ifdef WEFT_TEST_DEVICE_GRADIENTS  // gradient_home.h
      c.device_kind = WEFT_DEVICE_CUDA;
#endif
      c_.push_back(c);
    }
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  size_t size() const { return params_.size(); }
  const TestParam& operator[](size_t i) const { return params_[i]; }
  const std::vector<weft_param>& c() const { return c_; }

  uint64_t count(size_t i) const {
    uint64_t n = 1;
    for (const int64_t extent : params_[i].shape) n *= static_cast<uint64_t>(extent);
    return n;
  }
  // Returns the offset, in elements, of element k in row-major order.
  uint64_t offset(size_t i, uint64_t k) const {
    uint64_t at = 0;
    for (size_t d = params_[i].shape.size(); d-- > 0;) {
      const auto extent = static_cast<uint64_t>(params_[i].shape[d]);
      at += k % extent * static_cast<uint64_t>(params_[i].strides[d]);
      k /= extent;
    }
    return at;
  }
  // Returns the bytes that the gradient spans, gaps included.
  uint64_t span(size_t i) const {
    if (count(i) == 0) return 0;
    uint64_t last = 0;
    for (size_t d = 0; d < params_[i].shape.size(); d++) {
      last += static_cast<uint64_t>((params_[i].shape[d] - 1) * params_[i].strides[d]);
    }
    return (last + 1) * dtype_size(params_[i].dtype);
  }

 private:
  std::vector<TestParam> params_;
  std::vector<weft_param> c_;
};

// Parameters of various kinds: odd sizes, several dtypes, a scalar, an empty one, a transposed and two sparse
// layouts.
inline std::vector<TestParam> mixed_params() {
  return {{"conv.weight", {8, 3, 3, 3}},
          {"conv.bias", {8}},
          {"scale", {}},
          {"nothing", {4, 0}},
          {"transposed", {5, 7}, Dtype::kF32, {1, 5}},
          {"padded", {6, 5}, Dtype::kF32, {9, 1}},
          {"every_second", {33}, Dtype::kF64, {2}},
          {"half", {17, 3}, Dtype::kF16},
          {"brain", {129}, Dtype::kBf16},
          {"double", {11, 2}, Dtype::kF64},
          {"fc.weight", {37, 41}},
          {"fc.bias", {41}}};
}

// Small whole numbers, exact in every dtype, as are their sums.
inline double value(uint64_t seed, int rank, size_t param, uint64_t element) {
  uint64_t h = seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank) * 0xbf58476d1ce4e5b9u +
               param * 0x94d049bb133111ebu + element * 0xd6e8feb86659fd93u;
  h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
  return static_cast<double>((h >> 40) % 17) - 8.0;
}

// Converts count numbers to dtype.
inline void store_as(Dtype dtype, const double* from, uint64_t count, std::byte* to) {
  CopyArgs args;
  args.src = reinterpret_cast<const std::byte*>(from);
  args.dst = to;
  args.count = count;
  args.src_dtype = Dtype::kF64;
  args.dst_dtype = dtype;
  host_ops().copy(args);
}
inline void store_as(Dtype dtype, double from, std::byte* to) {
  store_as(dtype, &from, 1, to);
}

// One rank's gradients of a model. Gaps hold a pattern that must not change.
class Gradients {
 public:
  static constexpr std::byte kGap{0x5a};

  explicit Gradients(const Model& model) : model_(model) {
    for (size_t i = 0; i < model.size(); i++) memory_.emplace_back(model.span(i), kGap);
  }
  std::byte* operator[](size_t i) { return memory_[i].data(); }
  void fill(uint64_t seed, int rank) {
    for (size_t i = 0; i < model_.size(); i++) fill(i, seed, rank);
  }
  void fill(size_t i, uint64_t seed, int rank) { fill(i, seed, rank, memory_[i].data()); }
  void fill(size_t i, uint64_t seed, int rank, std::byte* to) {
    std::vector<double> values(model_.count(i));
    for (uint64_t k = 0; k < values.size(); k++) values[k] = value(seed, rank, i, k);
    Bytes stored(values.size() * dtype_size(model_[i].dtype));
    store_as(model_[i].dtype, values.data(), values.size(), stored.data());
    place(i, stored, to);
  }
  // Writes the elements of a parameter, given one after the other, in the parameter's layout.
  void place(size_t i, const Bytes& elements, std::byte* to) const {
    const size_t size = dtype_size(model_[i].dtype);
    for (uint64_t k = 0; k < model_.count(i); k++) std::memcpy(to + at(i, k), &elements[k * size], size);
  }
  uint64_t at(size_t i, uint64_t k) const { return model_.offset(i, k) * dtype_size(model_[i].dtype); }
  const std::vector<Bytes>& memory() const { return memory_; }
  std::vector<Bytes>& memory() { return memory_; }

 private:
  const Model& model_;
  std::vector<Bytes> memory_;
};

// Returns the expected gradients after a step: per parameter the sum over ranks and seeds (the
// micro-batches), folded in rank order and divided once, in the gradient's layout.
inline Gradients reference(const Model& model, const std::vector<uint64_t>& seeds, int ranks,
                           double divisor) {
  Gradients out(model);
  for (size_t i = 0; i < model.size(); i++) {
    const Dtype dtype = model[i].dtype;
    const uint64_t count = model.count(i);
    std::vector<Bytes> inputs(static_cast<size_t>(ranks), Bytes(count * dtype_size(dtype)));
    std::vector<const std::byte*> pointers;
    for (int r = 0; r < ranks; r++) {
      std::vector<double> sums(count);
      for (uint64_t k = 0; k < count; k++) {
        for (const uint64_t seed : seeds) sums[k] += value(seed, r, i, k);
      }
      store_as(dtype, sums.data(), count, inputs[static_cast<size_t>(r)].data());
      pointers.push_back(inputs[static_cast<size_t>(r)].data());
    }
    Bytes result(count * dtype_size(dtype));
    std::byte* const output = result.data();
    FoldArgs fold;
    fold.dtype = dtype;
    fold.inputs = pointers.data();
    fold.input_count = ranks;
    fold.outputs = &output;
    fold.output_count = 1;
    fold.count = count;
    fold.postscale = 1.0 / divisor;
    host_ops().fold(fold);
    out.place(i, result, out[i]);
  }
  return out;
}

// Returns the first parameter whose bytes differ, gaps included; empty if none does.
inline std::string differs(const Model& model, const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
  for (size_t i = 0; i < model.size(); i++) {
    if (a[i] != b[i]) return model[i].name;
  }
  return "";
}

struct RigOptions {
  int32_t mode = WEFT_GRADIENT_COPY;
  std::vector<uint64_t> limits = {256};
  int64_t timeout_ms = 0;
  weft_bucket_fn on_bucket = nullptr;
  void* on_bucket_user_data = nullptr;
  uint64_t flags = 0;
  int32_t divide_by = WEFT_DIVIDE_WORLD;
  int32_t reduce_dtype = 0;
  weft_planner replan = WEFT_PLANNER_NONE;  // most tests examine the buckets of the first plan
  weft_accumulation accumulation = WEFT_ACCUMULATION_UNSET;  // default: the reducer in copy mode
};

// Returns the default of tests with local steps: in copy mode the reducer adds up.
inline weft_accumulation accumulation_in(int32_t mode) {
  return mode == WEFT_GRADIENT_COPY ? WEFT_ACCUMULATION_REDUCER : WEFT_ACCUMULATION_PROGRAM;
}

inline Status make_reducer(const std::shared_ptr<Comm>& comm, const Model& model, std::shared_ptr<Hook> hook,
                           std::unique_ptr<Reducer>* reducer, const RigOptions& rig = {}) {
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = model.c().data();
  options.param_count = model.size();
  options.mode = rig.mode;
  options.bucket_limits = rig.limits.empty() ? nullptr : rig.limits.data();
  options.bucket_limit_count = static_cast<uint32_t>(rig.limits.size());
  options.timeout_ms = rig.timeout_ms;
  options.on_bucket = rig.on_bucket;
  options.on_bucket_user_data = rig.on_bucket_user_data;
  options.flags = rig.flags;
  options.replan = rig.replan;
  options.accumulation =
      rig.accumulation != WEFT_ACCUMULATION_UNSET ? rig.accumulation : accumulation_in(rig.mode);
  options.divide_by = rig.divide_by;
  options.reduce_dtype = rig.reduce_dtype;
  return Reducer::create(comm, options, std::move(hook), reducer);
}

// Calls ready for every gradient, in a random order and on threads of its own.
inline Status ready_all(Reducer& reducer, const std::vector<std::byte*>& gradients, uint64_t seed,
                        int threads = 1, const weft_stream* stream = nullptr) {
  std::vector<size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Status> results(static_cast<size_t>(threads));
  const auto body = [&](size_t t) {
    for (size_t i = t; i < order.size(); i += static_cast<size_t>(threads)) {
      const Status status = reducer.ready(order[i], gradients[order[i]], stream);
      if (!status.ok()) results[t] = status;
    }
  };
  std::vector<std::thread> others;
  for (size_t t = 1; t < static_cast<size_t>(threads); t++) others.emplace_back(body, t);
  body(0);
  for (std::thread& other : others) other.join();
  for (const Status& status : results) WEFT_TRY(status);
  return {};
}

// A barrier before one of the ranks fails. A barrier of the communicator could fail too, before all ranks
// have left it.
class RankBarrier {
 public:
  explicit RankBarrier(int ranks) : ranks_(ranks) {}
  bool arrive(Rank& self) {
    arrived_++;
    Engine& engine = self.comm->context().engine();
    return engine.wait([&] { return arrived_ == ranks_; }, Deadline::after(engine.clock(), 60'000, 0));
  }

 private:
  const int ranks_;
  std::atomic<int> arrived_{0};
};

inline std::vector<std::byte*> pointers(Gradients& gradients) {
  std::vector<std::byte*> out;
  for (Bytes& memory : gradients.memory()) out.push_back(memory.data());
  return out;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace weft::test
