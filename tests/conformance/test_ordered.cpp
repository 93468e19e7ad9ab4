// WEFT_REDUCER_DETERMINISTIC: the bits of a reducer's results are those of one fold in the order of the
// ranks, on every backend, by every algorithm, over any hosts and with any buckets.
#include <cmath>

#include "../unit/reducer_rig.h"
#include "backends.h"
#include "base/text.h"
#include "coll/select.h"
#include "shm/backend.h"
#include "support/catch.h"

using namespace weft;
using namespace weft::test;

namespace {

// Long enough for several chunks and pieces, short enough for one; no slice of them is whole.
std::vector<TestParam> params() {
  return {{"long", {70'001}},
          {"short", {13}},
          {"half", {20'003}, Dtype::kF16},
          {"brain", {9'001}, Dtype::kBf16},
          {"few", {5}, Dtype::kBf16},
          {"double", {4'099}, Dtype::kF64}};
}

// Of very different sizes, so that the order of addition shows.
double rough(int rank, size_t param, uint64_t element) {
  const double size =
      std::ldexp(1.0, static_cast<int>((element * 7 + static_cast<uint64_t>(rank) * 5) % 11) - 5);
  return std::sin(static_cast<double>(element + param + 1) * (rank + 1.3)) * size;
}

void fill(const Model& model, int rank, Gradients* gradients) {
  for (size_t i = 0; i < model.size(); i++) {
    for (uint64_t k = 0; k < model.count(i); k++) {
      store(model[i].dtype, rough(rank, i, k), (*gradients)[i] + gradients->at(i, k));
    }
  }
}

// The mean, adding ranks in this order.
Gradients folded(const Model& model, const std::vector<int>& order) {
  std::vector<std::unique_ptr<Gradients>> all;
  for (const int rank : order) {
    all.push_back(std::make_unique<Gradients>(model));
    fill(model, rank, all.back().get());
  }
  Gradients out(model);
  for (size_t i = 0; i < model.size(); i++) {
    std::vector<const std::byte*> inputs;
    for (const auto& gradients : all) inputs.push_back((*gradients)[i]);
    std::byte* output = out[i];
    FoldArgs fold;
    fold.dtype = model[i].dtype;
    fold.inputs = inputs.data();
    fold.input_count = static_cast<int>(inputs.size());
    fold.outputs = &output;
    fold.output_count = 1;
    fold.count = model.count(i);
    fold.postscale = 1.0 / static_cast<double>(order.size());
    host_ops().fold(fold);
  }
  return out;
}

void reduce(Rank& self, const Model& model, const std::vector<uint64_t>& limits, const Gradients& expected) {
  std::unique_ptr<Reducer> reducer;
  const RigOptions rig = {.limits = limits, .flags = WEFT_REDUCER_DETERMINISTIC};
  self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
  if (!reducer) return;
  Gradients gradients(model);
  fill(model, self.rank, &gradients);
  self.expect(reducer->begin(nullptr), "begin");
  self.expect(ready_all(*reducer, pointers(gradients), static_cast<uint64_t>(self.rank)), "ready");
  self.expect(reducer->finish({}), "finish");
  self.expect(differs(model, gradients.memory(), expected.memory()).empty(),
              cat("other bits in ", differs(model, gradients.memory(), expected.memory())));
}

// Each rank's block of the sum, and all of it on one rank.
void scatter(Rank& self) {
  constexpr uint64_t kCount = 30'011;
  const auto n = static_cast<uint64_t>(self.size);
  std::vector<std::vector<float>> inputs(n, std::vector<float>(kCount * n));
  for (uint64_t r = 0; r < n; r++) {
    for (uint64_t k = 0; k < inputs[r].size(); k++) {
      inputs[r][k] = static_cast<float>(rough(static_cast<int>(r), 0, k));
    }
  }
  const auto mine = static_cast<uint64_t>(self.rank);
  std::vector<float> result(kCount), expected(kCount);
  for (uint64_t k = 0; k < kCount; k++) {
    for (uint64_t r = 0; r < n; r++) expected[k] += inputs[r][mine * kCount + k];
  }
  CollectiveArgs args;
  args.coll = Coll::kReduceScatter;
  args.dtype = Dtype::kF32;
  args.op = ReduceOp::kSum;
  args.count = kCount;
  args.src = reinterpret_cast<const std::byte*>(inputs[mine].data());
  args.dst = reinterpret_cast<std::byte*>(result.data());
  args.ordered = true;
  self.expect(self.run(args), "reduce_scatter");
  self.expect(result == expected, "reduce_scatter gives other bits");
  for (int root = 0; root < self.size; root++) {
    args.coll = Coll::kReduce;
    args.peer = root;
    args.src = reinterpret_cast<const std::byte*>(inputs[mine].data());
    self.expect(self.run(args), "reduce");
    for (uint64_t k = 0; self.rank == root && k < kCount; k++) {
      float sum = 0;
      for (uint64_t r = 0; r < n; r++) sum += inputs[r][k];
      expected[k] = sum;
    }
    self.expect(self.rank != root || result == expected, "reduce gives other bits");
  }
}

std::vector<std::string> forced_algorithms() {
  std::vector<std::string> forced = {""};
  for (const coll::AlgorithmRow row_of : coll::algorithms()) {
    if (!row_of().partial) continue;
    if (row_of().coll == Coll::kAllReduce) forced.push_back(cat("all_reduce=", row_of().name));
    if (row_of().coll == Coll::kReduce) forced.push_back(cat("reduce=", row_of().name));
    if (row_of().coll == Coll::kReduceScatter) forced.push_back(cat("reduce_scatter=", row_of().name));
  }
  return forced;
}

}  // namespace

TEST_CASE("the sums of these tests depend on their order") {
  const Model model(params());
  const Gradients up = folded(model, {0, 1, 2}), down = folded(model, {2, 1, 0});
  for (size_t i = 0; i < model.size(); i++) {
    // 16-bit ones are added in f32; there it is the rounding of partial sums that shows.
    const bool shows = dtype_size(model[i].dtype) > 2 && model.count(i) > 100;
    INFO(model[i].name);
    CHECK((!shows || up.memory()[i] != down.memory()[i]));
  }
}

TEST_CASE(
    "deterministic results are one fold in rank order on every backend, by every algorithm, in any buckets") {
  const Model model(params());
  for (const int size : {3, 4}) {
    std::vector<int> order(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    const Gradients expected = folded(model, order);
    for (const BackendRow& row : backend_rows()) {
      for (const std::string& algorithms : forced_algorithms()) {
        // Schedules are the same everywhere, and shared memory has none.
        const bool forced = !algorithms.empty();
        if (forced && (row.processes || row.simulated || row.backend == shm::backend)) continue;
        RanksOptions options;
        options.comm.algorithms = algorithms;
        INFO(row.name << ", " << size << " ranks, " << algorithms);
        run_on(
            row, size,
            [&](Rank& self) {
              for (const auto& limits :
                   std::vector<std::vector<uint64_t>>{{0}, {1000, 100'000}, {1u << 30}}) {
                reduce(self, model, limits, expected);
              }
              scatter(self);
            },
            options);
      }
    }
  }
}
