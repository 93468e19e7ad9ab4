// The defaults of a reducer, which are DistributedDataParallel's. It broadcasts rank 0's values at creation,
// re-plans its buckets after the first step, and copies gradients whose layout differs from their
// parameters'.
#include <memory>
#include <string>
#include <vector>

#include "reducer_rig.h"
#include "shm/backend.h"

namespace unit_reducer_defaults {

using namespace weft;
using namespace weft::test;

namespace {

weft_reducer_stats stats_of(const Reducer& reducer) {
  weft_reducer_stats stats{};
  reducer.query(&stats);
  return stats;
}

// ---- values

std::vector<TestParam> valued_params() {
  return {{"weight", {8, 3}},
          {"table", {6}, Dtype::kF16},
          {"mean", {7}, Dtype::kF64},
          {"padded", {6, 5}, Dtype::kF32, {9, 1}},
          {"turned", {5, 7}, Dtype::kF32, {1, 5}},
          {"none", {9}}};
}

uint64_t kind_of(const std::string& name) {
  return name == "table" ? WEFT_PARAM_STATE_ONLY : name == "mean" ? WEFT_PARAM_BUFFER : 0;
}

// A rank's values, which identify the rank; "none" has no value.
struct Values {
  Values(const Model& model, int rank) : memory(model), list(model.c()) {
    memory.fill(100, rank);
    for (size_t i = 0; i < model.size(); i++) {
      list[i].flags = kind_of(model[i].name);
      if (model[i].name != "none") list[i].parameter = memory[i];
    }
  }
  Gradients memory;
  std::vector<weft_param> list;
};

Status create(const Rank& self, const std::vector<weft_param>& params, std::unique_ptr<Reducer>* reducer,
              uint64_t flags = 0) {
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params.data();
  options.param_count = params.size();
  options.flags = flags;
  return Reducer::create(self.comm, options, allreduce_hook(), reducer);
}

// ---- re-planning

struct PlanCase {
  std::string name;
  RigOptions rig = {};
  bool view_on_rank_1 = false;
  bool follows = true;  // the hook has a replan function
  bool given = false;   // the program gives a plan
  uint64_t generation = 1;
  uint64_t from_step = 1;  // the first step with that generation
};

// Returns a hook of the program's own that does what the default hook does, with or without a function for
// re-plans.
std::shared_ptr<Hook> table_hook(bool follows) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "mine";
  table.plan = [](void*, const weft_bucket* bucket, weft_hook_plan* plan, char*) -> weft_status {
    plan->collective_count = 1;
    plan->collectives[0].coll = WEFT_COLL_ALL_REDUCE;
    plan->collectives[0].dtype = bucket->dtype;
    plan->collectives[0].op = WEFT_OP_AVG;
    plan->collectives[0].count = bucket->count;
    return WEFT_OK;
  };
  table.stage = [](void*, const weft_bucket*, weft_stage*, char*) -> weft_status { return WEFT_OK; };
  if (follows) table.replan = [](void*, uint64_t, char*) -> weft_status { return WEFT_OK; };
  std::shared_ptr<Hook> hook;
  static_cast<void>(make_hook_table(table, nullptr, &hook));
  return hook;
}

// ---- strides

// The gradients of a model in other strides; gaps keep their pattern.
struct Restrided {
  explicit Restrided(const Model& model, const std::vector<std::vector<int64_t>>& strides)
      : lying(with(model, strides)), memory(lying) {}
  static std::vector<TestParam> with(const Model& model, const std::vector<std::vector<int64_t>>& strides) {
    std::vector<TestParam> params;
    for (size_t i = 0; i < model.size(); i++) {
      params.push_back(model[i]);
      params.back().strides = strides[i];
    }
    return params;
  }
  weft_tensor tensor(size_t i, std::byte* data) const {
    const weft_param& p = lying.c()[i];
    return {sizeof(weft_tensor), data, p.dtype, p.ndim, p.shape, p.strides, WEFT_DEVICE_HOST, 0};
  }
  Model lying;
  Gradients memory;
};

std::vector<TestParam> strided_params() {
  return {{"row", {4, 6}},
          {"turned", {5, 7}, Dtype::kF32, {1, 5}},
          {"channels", {2, 3, 4, 5}, Dtype::kF32, {60, 1, 15, 3}},
          {"padded", {6, 5}, Dtype::kF64, {9, 1}},
          {"half", {17, 3}, Dtype::kF16},
          {"large", {120, 90}}};
}
const std::vector<std::vector<int64_t>> kOthers = {{1, 4}, {7, 1}, {60, 20, 5, 1}, {5, 1}, {1, 20}, {1, 121}};

}  // namespace

TEST_CASE("a new reducer's parameters, state and buffers have rank 0's values on every rank") {
  const Model model(valued_params());
  const auto body = [&](Rank& self) {
    for (const uint64_t flags : {uint64_t{0}, WEFT_REDUCER_KEEP_VALUES}) {
      Values values(model, self.rank);
      std::unique_ptr<Reducer> reducer;
      self.expect(create(self, values.list, &reducer, flags), "create");
      Values expected(model, flags == 0 ? 0 : self.rank);
      expected.memory.fill(5, 100, self.rank);  // it has no value
      const std::string wrong = differs(model, values.memory.memory(), expected.memory.memory());
      self.expect(wrong.empty(), wrong + " is not whose it should be");
    }
  };
  for (const Backend* backend :
       {static_cast<const Backend*>(nullptr), static_cast<const Backend*>(&shm::backend())}) {
    RanksOptions options;
    options.backend = backend;
    for (const int ranks : {1, 3}) check(run_threads(ranks, body, options));
  }
}

TEST_CASE("a value that one rank lacks is an error by name on all ranks, unless values are kept") {
  const Model model(valued_params());
  check(run_threads(3, [&](Rank& self) {
    Values values(model, self.rank);
    if (self.rank == 1) values.list[4].parameter = nullptr;
    std::unique_ptr<Reducer> reducer;
    const Status status = create(self, values.list, &reducer);
    self.expect(status.code() == Code::kMismatch &&
                    has(status.text(), "parameter 4 ('turned') has a value on rank 0 and none on rank 1") &&
                    has(status.text(), "WEFT_REDUCER_KEEP_VALUES"),
                status.text());
    self.expect(values.memory.memory() == Values(model, self.rank).memory.memory(), "nothing was sent");
    self.expect(create(self, values.list, &reducer, WEFT_REDUCER_KEEP_VALUES), "the communicator works");
  }));
}

TEST_CASE("buckets follow the order of readiness from the second step on, unless an option prevents it") {
  const Model model({{"a", {40}}, {"b", {40}}, {"c", {40}}, {"d", {40}}});
  const auto flags = [](uint64_t given) {
    return RigOptions{.limits = {300}, .flags = given, .replan = WEFT_PLANNER_DEFAULT};
  };
  const std::vector<PlanCase> cases = {
      {.name = "copy mode", .rig = flags(0)},
      {.name = "uneven", .rig = flags(WEFT_REDUCER_UNEVEN)},
      {.name = "absent", .rig = flags(WEFT_REDUCER_ABSENT)},
      {.name = "hook with replan", .rig = flags(0), .follows = true},
      {.name = "hook without", .rig = flags(0), .follows = false, .generation = 0},
      {.name = "static", .rig = flags(WEFT_REDUCER_STATIC), .from_step = 2},
      {.name = "keep", .rig = {.limits = {300}}, .generation = 0},
      {.name = "sharded", .rig = flags(WEFT_REDUCER_SHARDED | WEFT_REDUCER_OWN_WHOLE), .generation = 0},
      {.name = "view",
       .rig = {.mode = WEFT_GRADIENT_VIEW, .limits = {300}, .replan = WEFT_PLANNER_DEFAULT},
       .generation = 0},
      {.name = "copy and view", .rig = flags(0), .view_on_rank_1 = true, .generation = 0},
      {.name = "given", .rig = flags(0), .given = true, .generation = 0},
  };
  for (const PlanCase& each : cases) {
    check(run_threads(2, [&](Rank& self) {
      RigOptions rig = each.rig;
      if (each.view_on_rank_1 && self.rank == 1) rig.mode = WEFT_GRADIENT_VIEW;
      const bool own = has(each.name, "hook");
      std::unique_ptr<Reducer> reducer;
      weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
      const uint64_t sizes[] = {2, 2}, order[] = {3, 2, 1, 0};
      weft_plan plan = WEFT_PLAN_INIT;
      plan.bucket_count = 2;
      plan.sizes = sizes;
      plan.params = order;
      options.params = model.c().data();
      options.param_count = model.size();
      options.mode = rig.mode;
      options.bucket_limits = rig.limits.data();
      options.bucket_limit_count = 1;
      options.flags = rig.flags;
      options.replan = rig.replan;
      options.plan = each.given ? &plan : nullptr;
      const Status made =
          Reducer::create(self.comm, options, own ? table_hook(each.follows) : allreduce_hook(), &reducer);
      self.expect(made, each.name + ": create");
      if (!reducer) return;
      Gradients gradients(model);
      for (uint64_t step = 0; step < 3; step++) {
        gradients.fill(step, self.rank);
        self.expect(reducer->begin(nullptr), "begin");
        self.expect(stats_of(*reducer).plan_generation == (step >= each.from_step ? each.generation : 0),
                    each.name + ": generation in step " + std::to_string(step));
        std::vector<std::byte*> places = pointers(gradients);
        for (const size_t i : {size_t{2}, size_t{0}, size_t{3}, size_t{1}}) {
          void* view = places[i];
          if (rig.mode == WEFT_GRADIENT_VIEW) {
            self.expect(reducer->grad_view(i, &view), "view");
            gradients.fill(i, step, self.rank, static_cast<std::byte*>(view));
          }
          places[i] = static_cast<std::byte*>(view);
          self.expect(reducer->ready(i, view, nullptr), "ready");
        }
        self.expect(reducer->finish({}), each.name + ": finish");
        const Gradients expected = reference(model, {step}, 2, 2);
        for (size_t i = 0; i < model.size() && (rig.flags & WEFT_REDUCER_SHARDED) == 0; i++) {
          self.expect(std::equal(expected.memory()[i].begin(), expected.memory()[i].end(), places[i]),
                      each.name + ": " + model[i].name);
        }
      }
      uint64_t first[2] = {9, 9};
      weft_bucket_info info{};
      self.expect(reducer->bucket(0, &info, first, 2), "bucket");
      if (each.generation > 0)
        self.expect(first[0] == 2 && first[1] == 0, each.name + ": not in the order of readiness");
    }));
  }
}

TEST_CASE("a first step that fails leaves no incomplete order of readiness") {
  const Model model({{"a", {40}}, {"b", {40}}, {"c", {40}}, {"d", {40}}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    const RigOptions rig = {.limits = {300}, .replan = WEFT_PLANNER_DEFAULT};
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (int step = 0; step < 3; step++) {
      self.expect(reducer->begin(nullptr), "begin");
      if (step == 0) {
        self.expect(reducer->ready(3, gradients[3], nullptr), "ready");
        self.expect(reducer->fail("bad batch"), "fail");
        continue;
      }
      for (const size_t i : {size_t{2}, size_t{0}, size_t{1}, size_t{3}})
        self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
      self.expect(reducer->finish({}), "finish");
    }
    uint64_t first[2] = {9, 9};
    weft_bucket_info info{};
    self.expect(reducer->bucket(0, &info, first, 2), "bucket");
    self.expect(stats_of(*reducer).plan_generation == 1 && first[0] == 2 && first[1] == 0,
                "not the order of the step that was reduced");
  }));
}

TEST_CASE("gradients with other strides than their parameters' are reduced, and counted") {
  const Model model(strided_params());
  for (const uint64_t flags :
       {uint64_t{0}, WEFT_REDUCER_STATIC, WEFT_REDUCER_UNEVEN, WEFT_REDUCER_RETAIN, WEFT_REDUCER_ABSENT}) {
    for (const int32_t reduce_dtype : {0, WEFT_DTYPE_BF16}) {
      RanksOptions on_shm;
      on_shm.backend = &shm::backend();
      check(run_threads(
          2,
          [&](Rank& self) {
            std::unique_ptr<Reducer> reducer;
            const RigOptions rig = {.flags = flags, .reduce_dtype = reduce_dtype};
            self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
            if (!reducer) return;
            Restrided others(model, kOthers);
            Gradients plain(model);
            uint64_t copied = 0;
            for (uint64_t step = 0; step < 4; step++) {
              // Every second gradient has its parameter's strides, in each step other ones; one is absent.
              others.memory.fill(step, self.rank);
              plain.fill(step, self.rank);
              self.expect(reducer->begin(nullptr), "begin");
              for (size_t i = 0; i < model.size(); i++) {
                const bool other = (i + step) % 2 == 0;
                const Status ready =
                    other ? reducer->ready_tensor(i, others.tensor(i, others.memory[i]), nullptr)
                          : reducer->ready(i, plain[i], nullptr);
                self.expect(ready, "ready of " + model[i].name);
                copied += other ? 1 : 0;
              }
              self.expect(reducer->finish({}), "finish");
              const Gradients expected = reference(model, {step}, 2, 2);
              const Gradients expected_others = reference(others.lying, {step}, 2, 2);
              for (size_t i = 0; i < model.size(); i++) {
                const bool other = (i + step) % 2 == 0;
                const Bytes& got = other ? others.memory.memory()[i] : plain.memory()[i];
                const Bytes& wanted = other ? expected_others.memory()[i] : expected.memory()[i];
                self.expect(got == wanted, model[i].name + " in step " + std::to_string(step));
              }
            }
            self.expect(stats_of(*reducer).copied_gradients == copied, "they are counted");
          },
          on_shm));
    }
  }
}

TEST_CASE("local steps add up gradients of any strides") {
  const Model model(strided_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {}), "create");
    if (!reducer) return;
    Restrided others(model, kOthers);
    Gradients plain(model);
    weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT;
    local.flags = WEFT_BEGIN_LOCAL;
    others.memory.fill(1, self.rank);
    self.expect(reducer->begin(&local), "begin");
    for (size_t i = 0; i < model.size(); i++)
      self.expect(reducer->ready_tensor(i, others.tensor(i, others.memory[i]), nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    plain.fill(2, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    for (size_t i = 0; i < model.size(); i++) self.expect(reducer->ready(i, plain[i], nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    const std::string wrong = differs(model, plain.memory(), reference(model, {1, 2}, 2, 2).memory());
    self.expect(wrong.empty(), wrong);
  }));
}

TEST_CASE("an out-of-view gradient with other strides is copied into its view") {
  const Model model(strided_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    const RigOptions rig = {.mode = WEFT_GRADIENT_VIEW, .flags = WEFT_REDUCER_COPY_STRAYS};
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
    if (!reducer) return;
    Restrided others(model, kOthers);
    others.memory.fill(3, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    for (size_t i = 0; i < model.size(); i++)
      self.expect(reducer->ready_tensor(i, others.tensor(i, others.memory[i]), nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    const Gradients expected = reference(model, {3}, 2, 2);
    for (const size_t i : {0, 1, 2, 4, 5}) {  // their views have the parameters' layout
      void* view = nullptr;
      self.expect(reducer->grad_view(i, &view), "view");
      self.expect(std::equal(expected.memory()[i].begin(), expected.memory()[i].end(),
                             static_cast<const std::byte*>(view)),
                  model[i].name);
    }
  }));
}

TEST_CASE("strides that address an element twice, or that a strict program forbids, are refused") {
  const Model model({{"w", {4, 6}}});
  check(run_threads(1, [&](Rank& self) {
    for (const uint64_t flags : {uint64_t{0}, WEFT_REDUCER_STRICT_STRIDES}) {
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = flags}), "create");
      if (!reducer) return;
      Gradients gradients(model);
      self.expect(reducer->begin(nullptr), "begin");
      const auto refused = [&](const int64_t* strides, void* data, const char* why) {
        weft_tensor tensor = {sizeof(weft_tensor), data,    WEFT_DTYPE_F32,   2,
                              model.c()[0].shape,  strides, WEFT_DEVICE_HOST, 0};
        const Status status = reducer->ready_tensor(0, tensor, nullptr);
        self.expect(status.code() == Code::kArg && has(status.text(), "'w'") && has(status.text(), why),
                    status.text());
      };
      const int64_t twice[] = {1, 1}, negative[] = {-6, 1}, turned[] = {1, 4};
      const bool strict = flags != 0;
      refused(twice, gradients[0], strict ? "and must be" : "more than once");
      refused(negative, gradients[0], strict ? "and must be" : "negative");
      refused(turned, nullptr, "and must be");
      if (strict) refused(turned, gradients[0], "with strides [1, 4], and must be f32 [4, 6]");
      self.expect(stats_of(*reducer).copied_gradients == 0, "nothing was copied");
      self.expect(reducer->ready(0, gradients[0], nullptr), "the step goes on");
      self.expect(reducer->finish({}), "finish");
    }
  }));
}

}  // namespace unit_reducer_defaults
