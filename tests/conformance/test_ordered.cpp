// WEFT_REDUCER_DETERMINISTIC: the bits of a reducer's results equal those of one fold in rank order, on every
// backend, over any hosts and with any buckets.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "../unit/reducer_rig.h"
#include "backends.h"
#include "base/text.h"
#include "support/catch.h"

using namespace weft;
using namespace weft::test;

namespace {

// One parameter is long enough for several chunks and pieces, others fit in one. No count is a multiple of
// the slice count.
std::vector<TestParam> params() {
  return {{"long", {70'001}},
          {"short", {13}},
          {"half", {20'003}, Dtype::kF16},
          {"brain", {9'001}, Dtype::kBf16},
          {"few", {5}, Dtype::kBf16},
          {"double", {4'099}, Dtype::kF64},
          {"middle", {1'021}}};
}

// Values of very different sizes, so that the order of addition changes the sum. In every group of three, one
// is large, one its opposite, and one survives only if those two were added before it. 16-bit sums show this
// too.
double rough(int rank, size_t param, uint64_t element) {
  if (element % 3 == 0) {
    const uint64_t part = (element / 3 + static_cast<uint64_t>(rank)) % 3;
    return part == 2 ? std::ldexp(1.0, -10) : std::ldexp(part == 0 ? 1.0 : -1.0, 15);
  }
  const double size =
      std::ldexp(1.0, static_cast<int>((element * 7 + static_cast<uint64_t>(rank) * 5) % 11) - 5);
  return std::sin(static_cast<double>(element + param + 1) * (rank + 1.3)) * size;
}

void fill(const Model& model, int rank, Gradients* gradients) {
  for (size_t i = 0; i < model.size(); i++) {
    for (uint64_t k = 0; k < model.count(i); k++) {
      store_as(model[i].dtype, rough(rank, i, k), (*gradients)[i] + gradients->at(i, k));
    }
  }
}

// Returns the mean, with the ranks added in this order.
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

// How a reducer gets its bucket plan.
struct Planned {
  const char* name;
  std::vector<uint64_t> limits = {1000, 100'000};
  bool explicitly = false;                  // the program sets the plan
  weft_planner replan = WEFT_PLANNER_NONE;  // planner of a re-plan after a step
  bool by_itself = false;                   // the reducer re-plans in the second begin
};

const std::vector<Planned>& plans() {
  static const std::vector<Planned> kPlans = {
      {"one bucket a parameter", {0}},
      {"by limits"},
      {"one bucket a type", {1u << 30}},
      {"explicit", {}, true},
      {"in the order of readiness", {0}, false, WEFT_PLANNER_LIMITS},
      {"in the order of readiness, by itself", {1000, 100'000}, false, WEFT_PLANNER_LIMITS, true},
      {"by the model", {0}, false, WEFT_PLANNER_MODEL},
  };
  return kPlans;
}

Status create(Rank& self, const Model& model, const Planned& planned, int32_t mode,
              std::unique_ptr<Reducer>* reducer) {
  // Other neighbours in another order, with the long parameter in the middle of a bucket.
  static constexpr uint64_t kSizes[] = {2, 1, 3, 1}, kParams[] = {3, 4, 5, 6, 0, 1, 2};
  const weft_plan plan = {sizeof plan, 4, kSizes, kParams};
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = model.c().data();
  options.param_count = model.size();
  options.mode = mode;
  options.flags = WEFT_REDUCER_DETERMINISTIC;
  if (planned.by_itself) options.replan = planned.replan;
  options.plan = planned.explicitly ? &plan : nullptr;
  options.bucket_limits = planned.explicitly ? nullptr : planned.limits.data();
  options.bucket_limit_count = static_cast<uint32_t>(planned.limits.size());
  return Reducer::create(self.comm, options, allreduce_hook(), reducer);
}

// An order that differs between ranks, except for the last parameter, which every rank marks ready last. The
// first plan launches its bucket first, so a plan by readiness is never the first plan, however long ranks
// take.
std::vector<size_t> ready_order(int rank, size_t params) {
  std::vector<size_t> order(params);
  std::iota(order.begin(), order.end(), size_t{0});
  std::rotate(order.begin(), order.begin() + rank, order.end() - 1);
  return order;
}

void reduce(Rank& self, const Model& model, const Planned& planned, int32_t mode, Gradients& mine,
            const Gradients& expected) {
  const std::string which = cat(planned.name, mode == WEFT_GRADIENT_VIEW ? ", view: " : ", copy: ");
  std::unique_ptr<Reducer> reducer;
  self.expect(create(self, model, planned, mode, &reducer), which + "create");
  if (!reducer) return;
  Gradients gradients(model);
  const auto step = [&] {
    self.expect(reducer->begin(nullptr), which + "begin");
    std::vector<std::byte*> places = pointers(gradients);
    for (size_t i = 0; i < model.size(); i++) {
      void* view = places[i];
      if (mode == WEFT_GRADIENT_VIEW) self.expect(reducer->grad_view(i, &view), which + "view");
      places[i] = static_cast<std::byte*>(view);
      std::copy_n(mine[i], model.span(i), places[i]);
    }
    for (const size_t i : ready_order(self.rank, model.size())) {
      self.expect(reducer->ready(i, places[i], nullptr), which + "ready");
    }
    self.expect(reducer->finish({}), which + "finish");
    for (size_t i = 0; i < model.size(); i++) {
      self.expect(std::memcmp(places[i], expected.memory()[i].data(), model.span(i)) == 0,
                  cat(which, "other bits in ", model[i].name));
    }
  };
  step();
  if (planned.replan == WEFT_PLANNER_NONE) return;
  weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
  options.planner = planned.replan;
  if (!planned.by_itself) self.expect(reducer->replan(options), which + "re-plan");
  step();
  weft_reducer_stats stats{};
  reducer->query(&stats);
  self.expect(stats.plan_generation == 1, which + "it has other buckets");
}

// Compares reduce_scatter and reduce with the fold in rank order.
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

}  // namespace

TEST_CASE("the sums of these tests depend on their order") {
  const Model model(params());
  const Gradients up = folded(model, {0, 1, 2}), down = folded(model, {2, 1, 0});
  for (size_t i = 0; i < model.size(); i++) {
    INFO(model[i].name);
    CHECK((model.count(i) < 3 || up.memory()[i] != down.memory()[i]));
  }
}

TEST_CASE("deterministic results are one fold in rank order on every backend, in any buckets") {
  const Model model(params());
  for (const int size : {3, 4}) {
    std::vector<int> order(static_cast<size_t>(size));
    std::iota(order.begin(), order.end(), 0);
    const Gradients expected = folded(model, order);
    for (const BackendRow& row : backend_rows()) {
      INFO(row.name << ", " << size << " ranks");
      run_on(row, size, [&](Rank& self) {
        Gradients mine(model);
        fill(model, self.rank, &mine);
        for (const auto& plan : plans()) {
          reduce(self, model, plan, WEFT_GRADIENT_COPY, mine, expected);
          reduce(self, model, plan, WEFT_GRADIENT_VIEW, mine, expected);
        }
        scatter(self);
      });
    }
  }
}
