// Shared by the tests of built-in hooks: trains a few steps with gradients of any size on every rank, and
// returns the results.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "gradient_home.h"
#include "reducer_rig.h"
#include "registry.h"

namespace weft::test {

inline Status built_in(const std::string& name, const std::string& options, std::shared_ptr<Hook>* hook,
                       std::shared_ptr<Hook> inner = nullptr, std::shared_ptr<Comm> comm = nullptr,
                       std::shared_ptr<Log> log = nullptr) {
  return Registry::make_hook(name, {options, std::move(inner), host_ops(), std::move(log), std::move(comm)},
                             hook);
}

// A model of matrices and vectors of odd sizes, in f32.
inline std::vector<TestParam> layers() {
  return {{"conv", {6, 3, 3, 3}}, {"conv.bias", {6}}, {"scalar", {}},     {"none", {0, 4}},
          {"fc", {37, 41}},       {"fc.bias", {41}},  {"out", {10, 131}}, {"out.bias", {10}}};
}

// Uniform in (-1, 1), the same on every machine.
inline double noise(uint64_t seed, int rank, size_t param, uint64_t element) {
  uint64_t h = seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank + 1) * 0xbf58476d1ce4e5b9u +
               param * 0x94d049bb133111ebu + element * 0xd6e8feb86659fd93u;
  h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
  h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<double>(h >> 11) * 0x1p-52 - 1.0;
}

using Value = std::function<double(uint64_t step, int rank, size_t param, uint64_t element)>;
using MakeHook = std::function<Status(std::shared_ptr<Hook>*)>;

struct Training {
  int ranks = 2;
  uint64_t steps = 1;
  Value value = noise;
  RigOptions rig = {.limits = {3000}};
  uint32_t micro_batches = 1;
  std::function<void(Reducer&)> at_end = nullptr;  // on rank 0
};

// results[step][rank][param]: as f64, in row-major order.
using Results = std::vector<std::vector<std::vector<std::vector<double>>>>;

inline std::vector<double> as_f64(const Model& model, Gradients& gradients, size_t param) {
  std::vector<double> out(model.count(param));
  for (uint64_t k = 0; k < out.size(); k++) {
    CopyArgs args;
    args.src = gradients[param] + gradients.at(param, k);
    args.dst = reinterpret_cast<std::byte*>(&out[k]);
    args.count = 1;
    args.src_dtype = model[param].dtype;
    args.dst_dtype = Dtype::kF64;
    host_ops().copy(args);
  }
  return out;
}

// Replaces the values that this rank does not own by NaN.
inline void keep_owned(Reducer& reducer, int rank, std::vector<std::vector<double>>* values) {
  uint64_t count = 0;
  if (!reducer.owned(rank, nullptr, &count).ok()) return;
  std::vector<weft_slice> slices(count);
  if (!reducer.owned(rank, slices.data(), &count).ok()) return;
  std::vector<std::vector<double>> owned;
  for (const std::vector<double>& param : *values) owned.emplace_back(param.size(), NAN);
  for (const weft_slice& slice : slices) {
    const auto at = static_cast<ptrdiff_t>(slice.offset);
    std::copy_n((*values)[slice.param].begin() + at, slice.count, owned[slice.param].begin() + at);
  }
  values->swap(owned);
}

// Gives rank 0 the values that other ranks own.
inline void gather_owned(Results* results) {
  for (auto& step : *results) {
    for (size_t r = 1; r < step.size(); r++) {
      for (size_t i = 0; i < step[0].size(); i++) {
        for (size_t k = 0; k < step[0][i].size(); k++) {
          if (std::isnan(step[0][i][k])) step[0][i][k] = step[r][i][k];
        }
      }
    }
  }
}

// Creates every rank's hook and trains. Any error fails the test case. Of a sharded reducer each rank has the
// results that it owns.
inline Results train(const Model& model, const MakeHook& make, const Training& training) {
  Results results(training.steps,
                  std::vector<std::vector<std::vector<double>>>(static_cast<size_t>(training.ranks)));
  const auto failures = run_ranks(training.ranks, [&](Rank& self) {
    std::shared_ptr<Hook> hook;
    self.expect(make(&hook), "hook");
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook, &reducer, training.rig), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < training.steps; step++) {
      for (size_t i = 0; i < model.size(); i++) {
        for (uint64_t k = 0; k < model.count(i); k++) {
          store_as(model[i].dtype, training.value(step, self.rank, i, k), gradients[i] + gradients.at(i, k));
        }
      }
      self.expect(train_step(*reducer, gradients, step, training.micro_batches), "step");
      auto& mine = results[step][static_cast<size_t>(self.rank)];
      for (size_t i = 0; i < model.size(); i++) mine.push_back(as_f64(model, gradients, i));
      if ((training.rig.flags & WEFT_REDUCER_SHARDED) != 0) keep_owned(*reducer, self.rank, &mine);
    }
    if (training.at_end && self.rank == 0) training.at_end(*reducer);
  });
  check(failures);
  return results;
}

inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

// Returns true if all ranks have the same bits after every step.
inline bool replicas_identical(const Results& results) {
  for (const auto& step : results) {
    for (const auto& rank : step) {
      if (rank.size() != step[0].size()) return false;  // one failed
      for (size_t i = 0; i < rank.size(); i++) {
        if (!same_bits(rank[i], step[0][i])) return false;
      }
    }
  }
  return true;
}

inline bool same_results(const Results& a, const Results& b) {
  for (size_t s = 0; s < a.size(); s++) {
    for (size_t r = 0; r < a[s].size(); r++) {
      if (a[s][r].size() != b[s][r].size()) return false;
      for (size_t i = 0; i < a[s][r].size(); i++) {
        if (!same_bits(a[s][r][i], b[s][r][i])) return false;
      }
    }
  }
  return a.size() == b.size();
}

// Returns the mean over ranks, in f64.
inline double mean_of(const Training& training, uint64_t step, size_t param, uint64_t element) {
  double sum = 0;
  for (int r = 0; r < training.ranks; r++) sum += training.value(step, r, param, element);
  return sum / training.ranks;
}

// Returns the largest difference between a step's results and the mean.
inline double largest_error(const Training& training, const Results& results, uint64_t step) {
  double largest = 0;
  for (size_t i = 0; i < results[step][0].size(); i++) {
    const std::vector<double>& got = results[step][0][i];
    for (uint64_t k = 0; k < got.size(); k++) {
      largest = std::max(largest, std::fabs(got[k] - mean_of(training, step, i, k)));
    }
  }
  return largest;
}

}  // namespace weft::test
