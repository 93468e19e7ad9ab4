// Properties of every built-in hook, alone and inside each cast: buckets of any size, views, values that
// cannot be represented, the step's divisor, and two reducers.
#include <set>
#include <sstream>

#include "hooks_rig.h"

namespace unit_hooks_every {

using namespace weft;
using namespace weft::test;

namespace {

struct Named {
  const char* name;
  const char* options;
  const char* whole;  // options that reduce gradients of equal elements without loss
  bool sends = true;  // all ranks have the same results
};

constexpr Named kHooks[] = {
    {"allreduce", "", ""},
    {"noop", "", nullptr, false},
    {"fp16", "", ""},
    {"bf16", "order=ddp", ""},
    {"int8", "rounding=stochastic", ""},
    {"fp8", "", "format=e5m2"},
    {"quantize", "per=channel", ""},
    {"onebit", "", ""},
    {"topk", "ratio=0.1", "ratio=1"},
    {"powersgd", "start=2", "start=2"},
    {"powersgd", "start=2 alternate=1 rank=2", "start=2 alternate=1 feedback=off"},
    {"powersgd", "start=2 feedback=ddp batch=1", "start=2 feedback=ddp"},
    {"powersgd", "start=1 feedback=off warm_start=0", "start=1 feedback=off warm_start=0"},
    {"batched_powersgd", "start=2 rank=1", "start=2 rank=2"},
    {"batched_powersgd", "start=2 rank=1 alternate=1", "start=2 rank=2 alternate=1 feedback=off"},
    {"post_local_sgd", "start=2 local=none", "start=99 local=none", false}};

MakeHook made(const std::string& name, const std::string& options, const std::string& cast) {
  return [=](std::shared_ptr<Hook>* hook) {
    std::shared_ptr<Hook> inner;
    WEFT_TRY(built_in(name, options, &inner));
    if (cast.empty()) {
      *hook = std::move(inner);
      return Status();
    }
    return built_in(cast, "", hook, std::move(inner));
  };
}

// Runs body(hook, how it is created) for each hook, alone and inside each cast.
template <class Body>
void each_hook(const char* Named::* options, Body&& body) {
  for (const Named& hook : kHooks) {
    if (hook.*options == nullptr) continue;
    for (const char* const cast : {"", "fp16", "bf16"}) {
      INFO(cast << "[" << hook.name << " " << hook.*options << "]");
      body(hook, made(hook.name, hook.*options, cast));
    }
  }
}

}  // namespace

TEST_CASE("this file lists every built-in hook") {
  std::set<std::string> here, there;
  for (const Named& hook : kHooks) here.insert(hook.name);
  std::istringstream names(Registry::hook_names());
  for (std::string name; names >> name;) there.insert(name.substr(0, name.find(',')));
  CHECK(here == there);
}

TEST_CASE("every hook accepts buckets of no, one and a few values, in copy and in view mode") {
  const Model model({{"scalar", {}}, {"none", {0, 4}}, {"few", {3}}, {"one", {1, 1}}, {"matrix", {9, 14}}});
  each_hook(&Named::options, [&](const Named& hook, const MakeHook& make) {
    Training training;
    training.ranks = 3;
    training.steps = 4;
    training.rig.limits = {0};
    const Results results = train(model, make, training);
    if (hook.sends) CHECK(replicas_identical(results));
    for (uint64_t step = 0; step < training.steps; step++) {
      for (const auto& param : results[step][0]) {
        for (const double v : param) REQUIRE(std::fabs(v) < 3);
      }
    }
    Results views = results;
    check(run_ranks(training.ranks, [&](Rank& self) {
      std::shared_ptr<Hook> own;
      self.expect(make(&own), "hook");
      std::unique_ptr<Reducer> reducer;
      RigOptions rig = training.rig;
      rig.mode = WEFT_GRADIENT_VIEW;
      self.expect(make_reducer(self.comm, model, own, &reducer, rig), "create");
      if (!reducer) return;
      std::vector<std::byte*> places;
      for (size_t i = 0; i < model.size(); i++) {
        void* view = nullptr;
        self.expect(reducer->grad_view(i, &view), "view");
        places.push_back(static_cast<std::byte*>(view));
      }
      for (uint64_t step = 0; step < training.steps; step++) {
        for (size_t i = 0; i < model.size(); i++) {
          for (uint64_t k = 0; k < model.count(i); k++) {
            const auto value = static_cast<float>(training.value(step, self.rank, i, k));
            reinterpret_cast<float*>(places[i])[k] = value;
          }
        }
        self.expect(reducer->begin(nullptr), "begin");
        self.expect(ready_all(*reducer, places, step), "ready");
        self.expect(reducer->finish({}), "finish");
        auto& mine = views[step][static_cast<size_t>(self.rank)];
        for (size_t i = 0; i < model.size(); i++) {
          const auto* const values = reinterpret_cast<const float*>(places[i]);
          mine[i].assign(values, values + model.count(i));
        }
      }
    }));
    CHECK(same_results(results, views));
  });
}

TEST_CASE("infinities and NaN pass through every hook, and are gone in the next step") {
  const Model model({{"matrix", {40, 30}}, {"vector", {70}}});
  each_hook(&Named::options, [&](const Named& hook, const MakeHook& make) {
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      Training training;
      training.steps = 5;
      training.value = [=](uint64_t step, int rank, size_t param, uint64_t element) {
        const bool here = step == 3 && rank == 1 && param == 0 && element % 5 == 2;  // more than topk sends
        return here ? bad : noise(step, rank, param, element);
      };
      const Results results = train(model, make, training);
      if (hook.sends) CHECK(replicas_identical(results));
      bool arrived = false;
      for (const double v : results[3][1][0]) arrived |= !std::isfinite(v);
      CHECK(arrived);
      for (const auto& param : results[4][1]) {
        for (const double v : param) REQUIRE(std::isfinite(v));
      }
    }
  });
}

TEST_CASE("every hook divides by the step's divisor, whichever ranks have data and whatever their weights") {
  const Model model({{"matrix", {20, 30}}, {"vector", {70}}});
  constexpr double kValues[] = {1, 2, 4}, kWeights[] = {3, 1, 2};
  each_hook(&Named::whole, [&](const Named& hook, const MakeHook& make) {
    const bool alternates = has(hook.whole, "alternate=1");  // the first factor is a random one
    for (const int32_t divide_by : {WEFT_DIVIDE_WORLD, WEFT_DIVIDE_ACTIVE, WEFT_DIVIDE_WEIGHTS}) {
      check(run_ranks(3, [&](Rank& self) {
        std::shared_ptr<Hook> own;
        self.expect(make(&own), "hook");
        std::unique_ptr<Reducer> reducer;
        self.expect(make_reducer(self.comm, model, own, &reducer,
                                 {.limits = {1 << 20}, .flags = WEFT_REDUCER_UNEVEN, .divide_by = divide_by}),
                    "create");
        if (!reducer) return;
        const bool weighs = divide_by == WEFT_DIVIDE_WEIGHTS;
        Gradients gradients(model);
        // Rank 2 has no data in step 3, and rank 1 has joined by step 5.
        for (uint64_t step = 0; step < (self.rank == 1 ? 5 : 7); step++) {
          const auto has_data = [&](int rank) {
            return !(rank == 2 && step == 3) && !(rank == 1 && step >= 5);
          };
          for (size_t i = 0; i < model.size(); i++) {
            std::fill_n(reinterpret_cast<float*>(gradients[i]), model.count(i),
                        static_cast<float>(kValues[self.rank]));
          }
          weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
          begin.micro_batches = 2;
          begin.weight = weighs ? kWeights[self.rank] : 0;
          begin.flags = has_data(self.rank) ? 0 : WEFT_BEGIN_NO_DATA;
          self.expect(reducer->begin(&begin), "begin");
          if (has_data(self.rank)) self.expect(ready_all(*reducer, pointers(gradients), step), "ready");
          self.expect(reducer->finish({}), "finish");
          double sum = 0, over = divide_by == WEFT_DIVIDE_WORLD ? 3 : 0;
          for (int rank = 0; rank < 3; rank++) {
            if (!has_data(rank)) continue;
            sum += (weighs ? kWeights[rank] : 1) * kValues[rank];
            if (divide_by != WEFT_DIVIDE_WORLD) over += weighs ? kWeights[rank] : 1;
          }
          for (size_t i = 0; i < model.size() && has_data(self.rank) && !(alternates && step == 2); i++) {
            for (const double v : as_f64(model, gradients, i)) {
              const bool right = std::fabs(v * over * 2 / sum - 1) < 0.02;
              if (!right) self.expect(false, cat("step ", step, ": ", v, ", not ", sum / over / 2));
              if (!right) return;
            }
          }
        }
        weft_join_result joined{};
        self.expect(reducer->join({}, &joined), "join");
      }));
    }
  });
}

TEST_CASE("a hook that two reducers share keeps separate state for each") {
  const Model first({{"a", {20, 30}}, {"b", {70}}}), second({{"c", {20, 30}}, {"d", {300}}, {"e", {6, 40}}});
  for (const Named& hook : kHooks) {
    INFO(hook.name << " " << hook.options);
    std::vector<std::vector<Bytes>> shared[2], apart[2];
    for (const bool shares : {true, false}) {
      check(run_ranks(2, [&](Rank& self) {
        std::shared_ptr<Hook> hooks[2];
        for (auto& one : hooks) self.expect(made(hook.name, hook.options, "")(&one), "hook");
        const Model* const models[2] = {&first, &second};
        std::unique_ptr<Reducer> reducers[2];
        for (size_t i = 0; i < 2; i++) {
          self.expect(make_reducer(self.comm, *models[i], hooks[shares ? 0 : i], &reducers[i]), "create");
        }
        if (!reducers[0] || !reducers[1]) return;
        for (uint64_t step = 0; step < 5; step++) {
          for (size_t i = 0; i < 2; i++) {
            Gradients gradients(*models[i]);
            for (size_t p = 0; p < models[i]->size(); p++) {
              for (uint64_t k = 0; k < models[i]->count(p); k++) {
                store_as(Dtype::kF32, noise(step, self.rank, 10 * i + p, k),
                         gradients[p] + gradients.at(p, k));
              }
            }
            self.expect(train_step(*reducers[i], gradients, step), "step");
            if (self.rank == 0) (shares ? shared : apart)[i].push_back(gradients.memory());
          }
        }
      }));
    }
    CHECK((shared[0] == apart[0] && shared[1] == apart[1]));
  }
}

}  // namespace unit_hooks_every
