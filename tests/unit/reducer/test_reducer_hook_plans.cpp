// A hook of the program's own learns of buckets, their parameters, and re-plans or rebinds that are
// cancelled. Hooks that cannot plan, or plan differently on ranks, are errors.
#include "bootstrap.h"
#include "reducer_rig.h"
#include "registry.h"

namespace unit_reducer_hook_plans {

using namespace weft;
using namespace weft::test;

namespace {

// Keeps data for each bucket until the next replan call, as weft.h allows.
struct User {
  std::vector<uint64_t> counts;     // of the buckets, from the call of plan
  int rank = 0;                     // from the reducer or a rebind
  std::vector<const void*> values;  // of each parameter, as seen in stage 0
  uint64_t refuses_below = 0;       // refuses buckets of fewer elements
  bool refuses_to_move = false;
};

User& user(void* data) {
  return *static_cast<User*>(data);
}

weft_status refuse(char* message, const char* why) {
  std::strcpy(message, why);
  return WEFT_ERR_UNSUPPORTED;
}

weft_status plan_bucket(void* data, const weft_bucket* bucket, weft_hook_plan* plan, char* message) {
  User& u = user(data);
  if (bucket->count < u.refuses_below) return refuse(message, "too small");
  if (bucket->buffer != nullptr || bucket->scratch != nullptr) return refuse(message, "memory in plan");
  if (u.counts.size() <= bucket->index) u.counts.resize(bucket->index + 1);
  u.counts[bucket->index] = bucket->count;
  plan->collective_count = 1;
  weft_hook_collective& c = plan->collectives[0];
  c.coll = WEFT_COLL_ALL_REDUCE;
  c.dtype = bucket->dtype;
  c.op = WEFT_OP_AVG;
  c.count = bucket->count;
  return WEFT_OK;
}

weft_status look(void* data, const weft_bucket* bucket, weft_stage* stage, char* message) {
  User& u = user(data);
  if (u.counts.size() != bucket->bucket_count || u.counts[bucket->index] != bucket->count) {
    return refuse(message, "a bucket that was not planned");
  }
  if (u.rank != bucket->rank) return refuse(message, "a rank that it was not told");
  for (uint64_t p = 0; stage->index == 0 && p < bucket->param_count; p++) {
    const weft_bucket_param& param = bucket->params[p];
    if (u.values.size() <= param.index) u.values.resize(param.index + 1);
    u.values[param.index] = param.parameter;
  }
  return WEFT_OK;
}

std::shared_ptr<Hook> hook_of(User* u) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "by_bucket";
  table.plan = plan_bucket;
  table.stage = look;
  table.replan = [](void* data, uint64_t buckets, char*) -> weft_status {
    user(data).counts.assign(buckets, 0);
    return WEFT_OK;
  };
  table.rebind = [](void* data, int32_t rank, int32_t, char* message) -> weft_status {
    if (user(data).refuses_to_move) return refuse(message, "it stays here");
    user(data).rank = rank;
    return WEFT_OK;
  };
  std::shared_ptr<Hook> hook;
  if (!make_hook_table(table, u, &hook).ok()) return nullptr;
  return hook;
}

void expect_step(Rank& self, Reducer& reducer, const Model& model, uint64_t seed) {
  Gradients gradients(model);
  gradients.fill(seed, self.rank);
  self.expect(reducer.begin(nullptr), "begin");
  self.expect(ready_all(reducer, pointers(gradients), seed), "ready");
  self.expect(reducer.finish({}), "finish");
  const Gradients expected = reference(model, {seed}, self.size, self.size);
  self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "result");
}

Status replan_by(Reducer& reducer, uint64_t limit) {
  weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  return reducer.replan(options);
}

}  // namespace

TEST_CASE("a hook sees the number and the value's address of each parameter, in any bucket") {
  const Model model({{"a", {10}}, {"b", {3, 4}}, {"c", {20}}, {"d", {2}}});
  check(run_threads(2, [&](Rank& self) {
    User u;
    u.rank = self.rank;
    std::vector<float> a(10), c(20);
    std::vector<weft_param> params = model.c();
    params[0].parameter = a.data();
    params[2].parameter = c.data();
    const uint64_t limit = 1 << 20;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params.data();
    options.param_count = params.size();
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    std::unique_ptr<Reducer> reducer;
    self.expect(Reducer::create(self.comm, options, hook_of(&u), &reducer), "create");
    if (!reducer) return;
    for (uint64_t step = 0; step < 2; step++) {
      u.values.clear();
      expect_step(self, *reducer, model, step);
      self.expect(u.values == std::vector<const void*>{a.data(), nullptr, c.data(), nullptr}, "values");
      if (step == 0) self.expect(replan_by(*reducer, 0), "re-plan");
    }
    self.expect(u.counts.size() == 4, "a bucket for each");
  }));
}

TEST_CASE("a hook is called with the old buckets when a re-plan is cancelled, and the reducer works") {
  const Model model({{"a", {10}}, {"b", {3, 4}}, {"c", {20}}, {"d", {2}}});
  check(run_threads(2, [&](Rank& self) {
    User u;
    u.rank = self.rank;
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook_of(&u), &reducer, {.limits = {1 << 20}}), "create");
    if (!reducer) return;
    expect_step(self, *reducer, model, 1);
    u.refuses_below = self.rank == 1 ? 3 : 0;
    const Status refused = replan_by(*reducer, 0);
    self.expect(refused.code() == Code::kHook && has(refused.text(), "too small"), refused.text());
    self.expect(!self.comm->failed() && reducer->bucket_count() == 1, "the plan stays");
    expect_step(self, *reducer, model, 2);
    u.refuses_below = 0;
    self.expect(replan_by(*reducer, 0), "re-plan");
    self.expect(reducer->bucket_count() == 4, "others");
    expect_step(self, *reducer, model, 3);
  }));
}

TEST_CASE("a hook is called with the old communicator when a rebind fails") {
  const Model model({{"a", {10}}, {"b", {3, 4}}});
  const Registry registry("");
  check(run_threads(2, [&](Rank& self) {
    User u;
    u.rank = self.rank;
    std::shared_ptr<Comm> turned;
    self.expect(split(self.comm, registry, false, 0, 1 - self.rank, &turned), "split");
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook_of(&u), &reducer, {.limits = {0}}), "create");
    if (!reducer || !turned) return;
    expect_step(self, *reducer, model, 1);
    u.refuses_to_move = self.rank == 1;
    const Status refused = reducer->rebind(turned);
    self.expect(refused.code() == Code::kHook && has(refused.text(), "it stays here"), refused.text());
    u.refuses_to_move = false;
    self.expect(u.rank == self.rank, "it was told");
    expect_step(self, *reducer, model, 2);
    self.expect(reducer->rebind(turned), "rebind");
    self.expect(u.rank == 1 - self.rank, "it is told of the other one");
  }));
}

TEST_CASE("a hook that cannot plan on one rank is an error on every rank") {
  const Model model({{"a", {10}}});
  const auto failures = run_threads(3, [&](Rank& self) {
    weft_hook_table table{};
    table.struct_size = sizeof table;
    table.name = "picky";
    table.plan = [](void*, const weft_bucket* bucket, weft_hook_plan*, char* message) {
      std::strcpy(message, "no such matrix");
      return bucket->rank == 1 ? WEFT_ERR_UNSUPPORTED : WEFT_OK;
    };
    table.stage = [](void*, const weft_bucket*, weft_stage*, char*) { return WEFT_OK; };
    std::shared_ptr<Hook> hook;
    self.expect(make_hook_table(table, nullptr, &hook), "table");
    std::unique_ptr<Reducer> reducer;
    const Status status = make_reducer(self.comm, model, hook, &reducer);
    self.expect(status.code() == Code::kHook && has(status.text(), "no such matrix"), status.text());
    self.expect(self.rank == 1 || has(status.text(), "rank 1 cannot"), status.text());
    self.expect(!self.comm->failed(), "the communicator still works");
    // Another reducer can be created with a hook that can plan.
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "another reducer");
  });
  check(failures);
}

TEST_CASE("hooks that declare different collectives are a mismatch, not a hang") {
  const Model model({{"a", {10}}});
  const auto failures = run_threads(2, [&](Rank& self) {
    weft_hook_table table{};
    table.struct_size = sizeof table;
    table.name = "uneven";
    table.plan = [](void*, const weft_bucket* bucket, weft_hook_plan* plan, char*) {
      plan->collective_count = 1;
      plan->collectives[0].coll = WEFT_COLL_ALL_REDUCE;
      plan->collectives[0].dtype = bucket->dtype;
      plan->collectives[0].op = bucket->rank == 0 ? WEFT_OP_SUM : WEFT_OP_AVG;
      plan->collectives[0].count = bucket->count;
      return WEFT_OK;
    };
    table.stage = [](void*, const weft_bucket*, weft_stage*, char*) { return WEFT_OK; };
    std::shared_ptr<Hook> hook;
    self.expect(make_hook_table(table, nullptr, &hook), "table");
    std::unique_ptr<Reducer> reducer;
    const Status status = make_reducer(self.comm, model, hook, &reducer);
    self.expect(status.code() == Code::kMismatch, status.text());
    self.expect(has(status.text(), "bucket 0 ['a']") && has(status.text(), "(averaged)"), status.text());
    self.expect(!self.comm->failed(), "the communicator still works");
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "another reducer");
  });
  check(failures);
}

}  // namespace unit_reducer_hook_plans
