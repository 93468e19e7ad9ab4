// Hook stages next to the engine: transfers continue meanwhile, calls of a hook never overlap, and a stage
// that does not return is an error and blocks nothing else.
#include <functional>
#include <new>
#include <stdexcept>
#include <thread>

#include "hooks_rig.h"

namespace unit_reducer_stages {

using namespace weft;
using namespace weft::test;

namespace {

// A hook of the program's own: one all-reduce a bucket, with the test's code in its stages.
struct User {
  std::function<weft_status(const weft_bucket&, const weft_stage&)> in_stage;
  std::atomic<int> inside{0};
  std::atomic<int> overlapped{0};
  std::atomic<int> stages{0};

  void enter() {
    if (inside.fetch_add(1) != 0) overlapped++;
    std::this_thread::yield();
  }
  void leave() { inside--; }
};

std::shared_ptr<Hook> hook_of(User* user) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "mine";
  table.plan = [](void* data, const weft_bucket* bucket, weft_hook_plan* plan, char*) {
    static_cast<User*>(data)->enter();
    plan->scratch_bytes = 64;
    plan->collective_count = 1;
    plan->collectives[0].coll = WEFT_COLL_ALL_REDUCE;
    plan->collectives[0].dtype = bucket->dtype;
    plan->collectives[0].op = WEFT_OP_AVG;
    plan->collectives[0].count = bucket->count;
    static_cast<User*>(data)->leave();
    return WEFT_OK;
  };
  table.stage = [](void* data, const weft_bucket* bucket, weft_stage* stage, char*) {
    User& u = *static_cast<User*>(data);
    u.enter();
    u.stages++;
    const weft_status status = u.in_stage ? u.in_stage(*bucket, *stage) : WEFT_OK;
    u.leave();
    return status;
  };
  table.save = [](void* data, void*, uint64_t* size, char*) {
    static_cast<User*>(data)->enter();
    *size = 0;
    static_cast<User*>(data)->leave();
    return WEFT_OK;
  };
  std::shared_ptr<Hook> hook;
  if (!make_hook_table(table, user, &hook).ok()) return nullptr;
  return hook;
}

// A stage that returns when `release` is set.
struct Stuck {
  std::atomic<bool> begun{false}, release{false};
  void wait() {
    begun = true;
    while (!release) std::this_thread::yield();
  }
};

Deadline in_a_minute(Rank& self) {
  return Deadline::after(self.comm->context().clock(), 60'000, 0);
}

CollectiveArgs sum(float* value) {
  CollectiveArgs args;
  args.coll = Coll::kAllReduce;
  args.dtype = Dtype::kF32;
  args.count = 1;
  args.src = args.dst = reinterpret_cast<std::byte*>(value);
  return args;
}

Status one_step(Reducer& reducer, Gradients& gradients) {
  WEFT_TRY(reducer.begin(nullptr));
  WEFT_TRY(ready_all(reducer, pointers(gradients), 0));
  return reducer.finish({});
}

}  // namespace

TEST_CASE("operations continue while a stage computes") {
  const Model model({{"a", {10}}});
  Stuck stuck;
  std::atomic<int> summed{0};
  check(run_threads(2, [&](Rank& self) {
    User user;
    user.in_stage = [&](const weft_bucket&, const weft_stage& stage) {
      if (stage.index == 0) stuck.wait();
      return WEFT_OK;
    };
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook_of(&user), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    gradients.fill(1, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(self.comm->context().engine().wait([&] { return stuck.begun.load(); }, in_a_minute(self)),
                "begun");
    float value = 1;
    self.expect(self.run(sum(&value)), "all_reduce");
    self.expect(value == 2, "its result");
    if (++summed == 2) stuck.release = true;
    self.expect(reducer->finish({}), "finish");
    self.expect(differs(model, gradients.memory(), reference(model, {1}, 2, 2).memory()).empty(), "result");
  }));
}

TEST_CASE("a hook's calls never overlap, although two reducers share it and the program saves it meanwhile") {
  const Model model({{"a", {10}}, {"b", {20}}, {"c", {30}}});
  const Model other({{"x", {10}}, {"y", {20}}, {"z", {30}}});
  check(run_threads(2, [&](Rank& self) {
    User user;
    const auto hook = hook_of(&user);
    std::unique_ptr<Reducer> first, second;
    self.expect(make_reducer(self.comm, model, hook, &first, {.limits = {0}}), "create");
    self.expect(make_reducer(self.comm, other, hook, &second, {.limits = {0}}), "create");
    if (!first || !second) return;
    std::atomic<bool> over{false};
    Context& context = self.comm->context();
    std::thread saver([&] {
      Bytes state;
      while (!over) {
        self.expect(with_turn(context, *hook, in_a_minute(self), [&] { return hook->save(&state); }), "save");
      }
    });
    Gradients a(model), b(other);
    for (uint64_t step = 0; step < 20; step++) {
      a.fill(step, self.rank);
      b.fill(step + 100, self.rank);
      self.expect(first->begin(nullptr), "begin");
      self.expect(second->begin(nullptr), "begin");
      self.expect(ready_all(*first, pointers(a), step), "ready");
      self.expect(ready_all(*second, pointers(b), step), "ready");
      self.expect(first->finish({}), "finish");
      self.expect(second->finish({}), "finish");
      self.expect(differs(model, a.memory(), reference(model, {step}, 2, 2).memory()).empty(), "result");
      self.expect(differs(other, b.memory(), reference(other, {step + 100}, 2, 2).memory()).empty(),
                  "result");
    }
    over = true;
    saver.join();
    self.expect(user.overlapped == 0, "calls overlapped");
    self.expect(user.stages == 20 * 2 * 3 * 2, "every stage runs once");
  }));
}

TEST_CASE("a stage that never returns fails the step at its deadline and is named, on every rank") {
  const Model model({{"a", {10}}, {"b", {10}}});
  // If the other rank's deadline ends too, that rank may first report that it waits for rank 1.
  for (const int64_t patience : {60'000, 400}) {
    for (const uint32_t stage : {0u, 1u}) {
      Stuck stuck;
      std::atomic<int> failed{0};
      RankBarrier created(2);
      check(run_threads(2, [&](Rank& self) {
        User user;
        user.in_stage = [&](const weft_bucket& bucket, const weft_stage& now) {
          if (self.rank == 1 && bucket.index == 1 && now.index == stage) {
            stuck.wait();
            std::memset(bucket.buffer, 42, bucket.count * sizeof(float));
            std::memset(bucket.scratch, 42, bucket.scratch_bytes);
          }
          return WEFT_OK;
        };
        std::unique_ptr<Reducer> reducer;
        const RigOptions rig = {.limits = {0}, .timeout_ms = self.rank == 1 ? 400 : patience};
        self.expect(make_reducer(self.comm, model, hook_of(&user), &reducer, rig), "create");
        if (!reducer) return;
        self.expect(created.arrive(self), "created");
        Gradients gradients(model);
        gradients.fill(1, self.rank);
        const Status status = one_step(*reducer, gradients);
        // In its last stage rank 1 owes the others nothing: they have finished, and get the error from their
        // next call.
        const bool owed = self.rank == 1 || stage == 0;
        if (owed) {
          self.expect(status.code() == Code::kTimeout, "code: " + status.text());
          const bool named = has(status.text(), "hook 'mine' has not completed stage " +
                                                    std::to_string(stage) + " of bucket 1 ['");
          const bool first = self.rank == 0 && patience < 60'000;
          self.expect(named || (first && has(status.text(), "waiting for rank 1")), "text: " + status.text());
          self.expect(status.info().ranks == std::vector<int>{1}, "rank");
        }
        const std::vector<Bytes> before = gradients.memory();
        failed++;
        self.expect(self.comm->context().engine().wait([&] { return failed == 2; }, in_a_minute(self)),
                    "all failed");
        stuck.release = true;
        reducer.reset();  // waits for the stage
        self.expect(user.inside == 0, "the stage has returned");
        self.expect(gradients.memory() == before, "gradients were written after finish");
      }));
    }
  }
}

TEST_CASE("a rank whose peer fails waits a moment for its own running stage, and names the peer") {
  const Model model({{"a", {10}}});
  for (const bool returns : {true, false}) {
    Stuck stuck;
    check(run_threads(2, [&](Rank& self) {
      User user;
      user.in_stage = [&](const weft_bucket&, const weft_stage&) {
        if (self.rank == 0) stuck.begun = true;
        while (self.rank == 0 && !(returns ? self.comm->failed() : stuck.release.load()))
          std::this_thread::yield();
        return WEFT_OK;
      };
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook_of(&user), &reducer), "create");
      if (!reducer) return;
      Gradients gradients(model);
      gradients.fill(1, self.rank);
      self.expect(reducer->begin(nullptr), "begin");
      if (self.rank == 1) {
        self.expect(self.comm->context().engine().wait([&] { return stuck.begun.load(); }, in_a_minute(self)),
                    "begun");
        self.comm->fail(Status::error(Code::kAborted, "enough"));
        self.expect(!reducer->finish({}).ok(), "finish");
        return;
      }
      self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
      const Status status = reducer->finish({});
      self.expect(status.code() == Code::kAborted && has(status.text(), "enough"), status.text());
      self.expect(has(status.text(), "hook 'mine' has not completed stage 0") == !returns, status.text());
      self.expect((user.inside != 0) == !returns, "whether the stage runs");
      stuck.release = true;
      reducer.reset();
      self.expect(user.inside == 0, "the stage has returned");
    }));
  }
}

TEST_CASE("a stage without memory fails the step, not the process") {
  class Greedy final : public Hook {
   public:
    std::string name() const override { return "greedy"; }
    Status plan(const weft_bucket&, weft_hook_plan*) override { return {}; }
    Status stage(const weft_bucket&, weft_stage*) override { throw std::bad_alloc(); }
  };
  const Model model({{"a", {10}}});
  check(run_threads(1, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, std::make_shared<Greedy>(), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    const Status status = one_step(*reducer, gradients);
    self.expect(status.code() == Code::kNoMemory, status.text());
    self.expect(has(status.text(), "no memory for a stage of hook 'greedy'"), status.text());
  }));
}

TEST_CASE("an exception in any function of a hook is the hook's failure, and does not end the process") {
  struct Thrower {
    std::string where;
    void reach(const char* here) const {
      if (where == here) throw std::runtime_error("the GPU is on fire");
    }
  };
  const auto make = [](Thrower* thrower) {
    weft_hook_table table{};
    table.struct_size = sizeof table;
    table.name = "thrower";
    table.plan = [](void* data, const weft_bucket*, weft_hook_plan*, char*) {
      static_cast<Thrower*>(data)->reach("plan");
      return WEFT_OK;
    };
    table.stage = [](void* data, const weft_bucket*, weft_stage*, char*) {
      static_cast<Thrower*>(data)->reach("stage");
      return WEFT_OK;
    };
    table.join = [](void* data, const weft_bucket*, char*) {
      static_cast<Thrower*>(data)->reach("join");
      return WEFT_OK;
    };
    table.replan = [](void* data, uint64_t, char*) {
      static_cast<Thrower*>(data)->reach("replan");
      return WEFT_OK;
    };
    table.free_user_data = [](void*) { throw 5; };
    std::shared_ptr<Hook> hook;
    static_cast<void>(make_hook_table(table, thrower, &hook).ok());
    return hook;
  };
  const Model model({{"a", {10}}, {"b", {20}}});
  for (const char* const where : {"plan", "stage", "join", "replan"}) {
    INFO(where);
    check(run_threads(2, [&](Rank& self) {
      // Only rank 1's hook throws. Rank 0 gets the error long before its deadline.
      Thrower thrower{self.rank == 1 ? where : ""};
      std::unique_ptr<Reducer> reducer;
      Status status =
          make_reducer(self.comm, model, make(&thrower), &reducer, {.flags = WEFT_REDUCER_UNEVEN});
      if (reducer) {
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        begin.flags = self.rank == 1 ? WEFT_BEGIN_NO_DATA : 0;
        Gradients gradients(model);
        gradients.fill(0, self.rank);
        status = reducer->begin(&begin);
        if (status.ok() && self.rank == 0) status = ready_all(*reducer, pointers(gradients), 0);
        if (status.ok()) status = reducer->finish({});
        // A rank that has received all it needs may get the error only now.
        const uint64_t limit = 0;
        weft_replan_options replan = WEFT_REPLAN_OPTIONS_INIT;
        replan.bucket_limits = &limit;
        replan.bucket_limit_count = 1;
        if (status.ok()) status = reducer->replan(replan);
      }
      const std::string text = std::string("hook 'thrower' threw an exception in ") +
                               (has("stage join", where) ? "a stage" : "a call") + ": the GPU is on fire";
      self.expect(status.code() == Code::kHook, status.text());
      self.expect(has(status.text(), text), status.text());
      if (std::string(where) == "plan") {
        thrower.where.clear();
        self.expect(make_reducer(self.comm, model, make(&thrower), &reducer), "the communicator is usable");
      }
    }));
  }
}

TEST_CASE("a hook that writes behind its scratch fails the step by name, on every rank") {
  const Model model({{"a", {10}}, {"b", {20}}});
  for (const uint64_t beyond : {0u, 1u, 20u}) {
    check(run_threads(2, [&](Rank& self) {
      User user;
      user.in_stage = [&](const weft_bucket& bucket, const weft_stage& stage) {
        const bool bad = self.rank == 1 && bucket.index == 1 && stage.index == 0;
        std::memset(bucket.scratch, 1, bucket.scratch_bytes + (bad ? beyond : 0));
        return WEFT_OK;
      };
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook_of(&user), &reducer, {.limits = {0}}), "create");
      if (!reducer) return;
      Gradients gradients(model);
      gradients.fill(1, self.rank);
      const Status status = one_step(*reducer, gradients);
      const char* const text = "stage 0: hook 'mine' wrote past the end of its scratch of 64 bytes";
      self.expect(beyond == 0 ? status.ok() : status.code() == Code::kHook && has(status.text(), text),
                  status.text());
    }));
  }
}

TEST_CASE("a rank whose hook is busy does not create a reducer, and the others get the reason") {
  const Model model({{"a", {10}}});
  RanksOptions options;
  options.comm.init_timeout_ms = 2000;
  RankBarrier begun(2), tried(2);
  check(run_threads(
      2,
      [&](Rank& self) {
        User user;
        const std::shared_ptr<Hook> hook = hook_of(&user);
        if (self.rank == 1) self.expect(hook->turn().try_take(), "turn");
        self.expect(begun.arrive(self), "begun");
        std::unique_ptr<Reducer> reducer;
        const Status status = make_reducer(self.comm, model, hook, &reducer);
        self.expect(status.code() == Code::kState, status.text());
        self.expect(has(status.text(), "a stage of hook 'mine' has not returned"), status.text());
        self.expect(!self.comm->failed(), "the communicator failed");
        self.expect(tried.arrive(self), "tried");
        if (self.rank == 1) hook->turn().give();
        self.expect(make_reducer(self.comm, model, hook, &reducer), "again");
      },
      options));
}

TEST_CASE("a hook inside a cast computes on the worker, with the bits of caller mode") {
  const Model model(layers());
  for (const char* name : {"int8", "topk", "powersgd"}) {
    Results results[2];
    for (const Engine::Mode mode : {Engine::Mode::kThread, Engine::Mode::kCaller}) {
      Results& mine = results[mode == Engine::Mode::kThread ? 0 : 1];
      mine.resize(3);
      RanksOptions options;
      options.mode = mode;
      const auto body = [&](Rank& self) {
        std::shared_ptr<Hook> inner, hook;
        self.expect(built_in(name, std::string(name) == "powersgd" ? "start=2" : "", &inner), "inner");
        self.expect(built_in("bf16", "", &hook, inner), "hook");
        std::unique_ptr<Reducer> reducer;
        self.expect(make_reducer(self.comm, model, hook, &reducer, {.limits = {3000}}), "create");
        if (!reducer) return;
        Gradients gradients(model);
        for (uint64_t step = 0; step < 3; step++) {
          for (size_t i = 0; i < model.size(); i++) {
            for (uint64_t k = 0; k < model.count(i); k++) {
              store_as(model[i].dtype, noise(step, self.rank, i, k), gradients[i] + gradients.at(i, k));
            }
          }
          self.expect(one_step(*reducer, gradients), "step");
          if (self.rank != 0) continue;
          mine[step].emplace_back();
          for (size_t i = 0; i < model.size(); i++) mine[step][0].push_back(as_f64(model, gradients, i));
        }
      };
      check(run_threads(2, body, options));
    }
    INFO(name);
    CHECK(same_results(results[0], results[1]));
  }
}

TEST_CASE("a gradient is not written to after finish has given up on a stage that does not return") {
  struct Late : Stuck {
    std::atomic<bool> returned{false};
  } late;
  const Model model({{"a", {10}}});
  const auto failures = run_threads(1, [&](Rank& self) {
    weft_hook_table table{};
    table.struct_size = sizeof table;
    table.name = "stuck";
    table.plan = [](void*, const weft_bucket*, weft_hook_plan*, char*) { return WEFT_OK; };  // no collective
    table.stage = [](void* data, const weft_bucket* bucket, weft_stage*, char*) {
      auto* const s = static_cast<Late*>(data);
      s->wait();
      static_cast<float*>(bucket->buffer)[0] = 42.0f;
      s->returned = true;
      return WEFT_OK;
    };
    std::shared_ptr<Hook> hook;
    self.expect(make_hook_table(table, &late, &hook), "table");
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook, &reducer, {.timeout_ms = 10}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    auto* const gradient = reinterpret_cast<float*>(gradients[0]);
    const float before = gradient[0];
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(ready_all(*reducer, pointers(gradients), 0), "ready");
    while (!late.begun) std::this_thread::yield();  // on the worker
    self.expect(reducer->finish({}).code() == Code::kTimeout, "finish");
    late.release = true;
    reducer.reset();  // waits for the stage
    self.expect(late.returned, "the stage has returned");
    self.expect(gradient[0] == before, "the gradient was written after finish");
  });
  check(failures);
}

}  // namespace unit_reducer_stages
