// A program's own hooks in a reducer: several collectives with computing between them, results elsewhere,
// stages that complete later, failures, shared hooks.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "reducer_rig.h"

namespace unit_reducer_hooks {

using namespace weft;
using namespace weft::test;

namespace {

uint64_t padded(const weft_bucket& bucket) {
  const auto size = static_cast<uint64_t>(bucket.size);
  return (bucket.count + size - 1) / size * size;
}

// A hand-written f32 all-reduce: reduce-scatter of the padded bucket in scratch, the owner divides and marks
// its part, all-gather, result in scratch. User sets what the test breaks.
struct User {
  int plans = 0;
  std::atomic<int> freed{0};
  int fail_in_stage = -1;
  int fail_in_bucket = 1;
  double extra_divisor = 1;
  std::vector<std::pair<uint32_t, uint32_t>> stages;  // (bucket, stage), in the order of their calls
  std::vector<double> divisors;
  std::vector<uint64_t> steps;
  std::vector<uint32_t> last;    // buckets that were marked as the last one, at stage 0
  std::vector<uint32_t> joined;  // buckets, in steps without data
  bool refuses_to_join = false;
};

User& user(void* data) {
  return *static_cast<User*>(data);
}

weft_status plan_by_hand(void* data, const weft_bucket* bucket, weft_hook_plan* plan, char*) {
  user(data).plans++;
  const uint64_t whole = padded(*bucket), part = whole / static_cast<uint64_t>(bucket->size);
  plan->scratch_bytes = whole * sizeof(float);
  plan->result_space = WEFT_SPACE_SCRATCH;
  plan->collective_count = 2;
  for (int k = 0; k < 2; k++) {
    weft_hook_collective& c = plan->collectives[k];
    c.coll = k == 0 ? WEFT_COLL_REDUCE_SCATTER : WEFT_COLL_ALL_GATHER;
    c.dtype = WEFT_DTYPE_F32;
    c.op = k == 0 ? WEFT_OP_SUM : 0;
    c.count = part;
    c.src_space = c.dst_space = WEFT_SPACE_SCRATCH;
    const uint64_t mine = part * static_cast<uint64_t>(bucket->rank) * sizeof(float);
    (k == 0 ? c.dst_offset_bytes : c.src_offset_bytes) = mine;
  }
  return WEFT_OK;
}

void compute_by_hand(User& u, const weft_bucket& bucket, uint32_t stage) {
  auto* scratch = static_cast<float*>(bucket.scratch);
  const uint64_t part = padded(bucket) / static_cast<uint64_t>(bucket.size);
  if (stage == 0) {
    std::memcpy(scratch, bucket.buffer, bucket.count * sizeof(float));
    std::fill(scratch + bucket.count, scratch + padded(bucket), 0.0f);
  }
  if (stage == 1) {
    float* mine = scratch + part * static_cast<uint64_t>(bucket.rank);
    const auto scale = static_cast<float>(1.0 / (bucket.divisor * u.extra_divisor));
    for (uint64_t i = 0; i < part; i++) mine[i] *= scale;
  }
}

weft_status stage_by_hand(void* data, const weft_bucket* bucket, weft_stage* stage, char* message) {
  User& u = user(data);
  u.stages.emplace_back(bucket->index, stage->index);
  if (stage->index == 0 && bucket->is_last != 0) u.last.push_back(bucket->index);
  if (bucket->index == 0 && stage->index == 0) {
    u.divisors.push_back(bucket->divisor);
    u.steps.push_back(bucket->step);
  }
  if (static_cast<int>(stage->index) == u.fail_in_stage &&
      static_cast<int>(bucket->index) == u.fail_in_bucket) {
    std::strcpy(message, "the matrix is singular");
    return WEFT_ERR_STATE;
  }
  compute_by_hand(u, *bucket, stage->index);
  return WEFT_OK;
}

std::shared_ptr<Hook> hook_by_hand(User* u) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "by_hand";
  table.plan = plan_by_hand;
  table.stage = stage_by_hand;
  table.join = [](void* data, const weft_bucket* bucket, char* message) -> weft_status {
    user(data).joined.push_back(bucket->index);
    if (!user(data).refuses_to_join) return WEFT_OK;
    std::strcpy(message, "no data, no step");
    return WEFT_ERR_STATE;
  };
  table.free_user_data = [](void* data) { user(data).freed++; };
  std::shared_ptr<Hook> hook;
  if (!make_hook_table(table, u, &hook).ok()) return nullptr;
  return hook;
}

std::vector<TestParam> float_params() {
  return {{"a", {7, 3}}, {"b", {5}}, {"empty", {0}}, {"c", {64}, Dtype::kF32, {2}}, {"d", {1}}, {"e", {33}}};
}

Status one_step(Reducer& reducer, Gradients& gradients, uint64_t seed) {
  WEFT_TRY(reducer.begin(nullptr));
  WEFT_TRY(ready_all(reducer, pointers(gradients), seed, 2));
  return reducer.finish({});
}

}  // namespace

TEST_CASE("a hook is notified of steps in which its rank has no data, before their stages") {
  const Model model(float_params());
  const auto failures = run_threads(2, [&](Rank& self) {
    User u;
    std::unique_ptr<Reducer> reducer;
    const RigOptions rig = {.limits = {100}, .flags = WEFT_REDUCER_UNEVEN};
    self.expect(make_reducer(self.comm, model, hook_by_hand(&u), &reducer, rig), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < 3; step++) {
      u.stages.clear();
      gradients.fill(step, self.rank);
      if (self.rank == 1 && step == 1) {
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        begin.flags = WEFT_BEGIN_NO_DATA;
        self.expect(reducer->begin(&begin), "begin");
        self.expect(reducer->finish({}), "finish");
        std::vector<uint32_t> buckets(reducer->bucket_count());
        std::iota(buckets.begin(), buckets.end(), 0u);
        self.expect(u.joined == buckets, "each bucket once, in order");
      } else {
        self.expect(one_step(*reducer, gradients, step), "step");
        self.expect(u.joined.empty() || step == 2, "nothing else");
      }
      self.expect(u.stages.size() == size_t{3} * reducer->bucket_count(), "the stages run all the same");
    }
  });
  check(failures);
}

TEST_CASE("a hook that refuses a step without data fails it on all ranks") {
  const Model model(float_params());
  const auto failures = run_threads(2, [&](Rank& self) {
    User u;
    u.refuses_to_join = self.rank == 1;
    std::unique_ptr<Reducer> reducer;
    const RigOptions rig = {.limits = {100}, .flags = WEFT_REDUCER_UNEVEN};
    self.expect(make_reducer(self.comm, model, hook_by_hand(&u), &reducer, rig), "create");
    if (!reducer) return;
    Gradients gradients(model);
    gradients.fill(0, self.rank);
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = self.rank == 1 ? WEFT_BEGIN_NO_DATA : 0;
    // Rank 1 refuses as soon as it has begun. Rank 0 gets the error from its next call, whichever that is.
    Status status = reducer->begin(&begin);
    if (status.ok() && self.rank == 0) status = ready_all(*reducer, pointers(gradients), 0);
    if (status.ok()) status = reducer->finish({});
    self.expect(has(status.text(), "no data, no step"), status.text());
  });
  check(failures);
}

TEST_CASE("a hook with two collectives and computing between them gives the results of all-reduce") {
  const Model model(float_params());
  for (const int ranks : {1, 2, 3, 5}) {
    INFO(ranks << " ranks");
    const auto failures = run_threads(ranks, [&](Rank& self) {
      User u;
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook_by_hand(&u), &reducer, {.limits = {100}}), "create");
      if (!reducer) return;
      const uint32_t buckets = reducer->bucket_count();
      self.expect(buckets >= 3 && u.plans == static_cast<int>(buckets), "each bucket is planned once");
      Gradients gradients(model);
      for (uint64_t step = 0; step < 3; step++) {
        gradients.fill(step, self.rank);
        self.expect(one_step(*reducer, gradients, step + static_cast<uint64_t>(self.rank)), "step");
        const Gradients expected = reference(model, {step}, ranks, ranks);
        self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "wrong result");
      }
      self.expect(u.stages.size() == 3 * 3 * size_t{buckets}, "every stage runs once");
      self.expect(u.divisors == std::vector<double>(3, ranks), "divisors");
      self.expect(u.steps == std::vector<uint64_t>{0, 1, 2}, "steps");
      weft_reducer_stats stats{};
      reducer->query(&stats);
      self.expect(stats.scratch_bytes > 0, "scratch is accounted for");
      reducer.reset();
      self.expect(u.freed == 1, "the hook's data is freed once");
    });
    check(failures);
  }
}

TEST_CASE("a result elsewhere is copied into the view in view mode") {
  const Model model({{"a", {10}}, {"b", {20}}});
  const auto failures = run_threads(2, [&](Rank& self) {
    User u;
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook_by_hand(&u), &reducer, {.mode = WEFT_GRADIENT_VIEW}),
                "create");
    if (!reducer) return;
    Gradients filler(model);
    std::vector<std::byte*> views;
    for (size_t i = 0; i < model.size(); i++) {
      void* view = nullptr;
      self.expect(reducer->grad_view(i, &view), "view");
      views.push_back(static_cast<std::byte*>(view));
      filler.fill(i, 3, self.rank, views[i]);
    }
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(ready_all(*reducer, views, 1), "ready");
    self.expect(reducer->finish({}), "finish");
    const Gradients expected = reference(model, {3}, 2, 2);
    for (size_t i = 0; i < model.size(); i++) {
      self.expect(std::memcmp(views[i], expected.memory()[i].data(), expected.memory()[i].size()) == 0,
                  "wrong result");
    }
  });
  check(failures);
}

TEST_CASE("only the bucket that is launched last is marked as the last one, in every step") {
  const Model model(float_params());
  check(run_threads(2, [&](Rank& self) {
    User u;
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook_by_hand(&u), &reducer, {.limits = {100}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < 2; step++) self.expect(one_step(*reducer, gradients, step), "step");
    self.expect(u.last == std::vector<uint32_t>(2, reducer->bucket_count() - 1), "the last bucket");
  }));
}

TEST_CASE("hooks see the divisor with the micro-batches") {
  const Model model({{"a", {10}}});
  const auto failures = run_threads(2, [&](Rank& self) {
    User u;
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook_by_hand(&u), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    weft_begin_options options = WEFT_BEGIN_OPTIONS_INIT;
    options.micro_batches = 3;
    self.expect(reducer->begin(&options), "begin");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    self.expect(u.divisors == std::vector<double>{6.0}, "divisor");
  });
  check(failures);
}

TEST_CASE("ranks whose stages divide by different micro-batches get a mismatch, not different averages") {
  const Model model({{"a", {10}}});
  check(run_threads(2, [&](Rank& self) {
    User u;
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook_by_hand(&u), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    weft_begin_options options = WEFT_BEGIN_OPTIONS_INIT;
    options.micro_batches = self.rank == 0 ? 2 : 3;
    self.expect(reducer->begin(&options), "begin");
    const Status handed = reducer->ready(0, gradients[0], nullptr);  // the other rank may have failed by then
    self.expect(handed.ok() || handed.code() == Code::kMismatch, handed.text());
    const Status finished = reducer->finish({});
    self.expect(finished.code() == Code::kMismatch, finished.text());
    self.expect(finished.text().find("with micro_batches 3") != std::string::npos, finished.text());
  }));
}

TEST_CASE("hooks see the step's divisor if ranks without data do not count") {
  const Model model({{"a", {10}}});
  for (const int32_t divide_by : {WEFT_DIVIDE_WORLD, WEFT_DIVIDE_ACTIVE, WEFT_DIVIDE_WEIGHTS}) {
    check(run_threads(3, [&](Rank& self) {
      User u;
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook_by_hand(&u), &reducer,
                               {.flags = WEFT_REDUCER_UNEVEN, .divide_by = divide_by}),
                  "create");
      if (!reducer) return;
      Gradients gradients(model);
      auto* const values = reinterpret_cast<float*>(gradients[0]);
      // Rank 2 has no data in the second step, and rank 1 has joined by the third. The sums are 36, 12, 12.
      for (int step = 0; step < (self.rank == 1 ? 2 : 3); step++) {
        std::fill_n(values, 10, step == 0 ? 12.0f : step == 1 ? 6.0f : 12.0f);
        weft_begin_options options = WEFT_BEGIN_OPTIONS_INIT;
        const bool empty = self.rank == 2 && step > 0;
        options.flags = empty ? WEFT_BEGIN_NO_DATA : 0;
        options.micro_batches = 2;
        self.expect(reducer->begin(&options), "begin");
        if (!empty) self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
        self.expect(reducer->finish({}), "finish");
        if (!empty && divide_by == WEFT_DIVIDE_WORLD) {
          self.expect(values[9] == (step == 0 ? 6.0f : 2.0f), "over all ranks");
        } else if (!empty && divide_by == WEFT_DIVIDE_ACTIVE) {
          self.expect(values[9] == (step == 0 ? 6.0f : step == 1 ? 3.0f : 6.0f), "over those with data");
        }
      }
      weft_join_result joined{};
      self.expect(reducer->join({}, &joined), "join");
      // Weights are in the contributions: equal ones make the mean over the ranks with data.
      const bool active = divide_by == WEFT_DIVIDE_ACTIVE;
      const std::vector<double> wanted = active ? std::vector<double>{6, 4, 2} : std::vector<double>{6, 6, 6};
      self.expect(u.divisors == wanted, "divisors");
    }));
  }
}

TEST_CASE("one hook may serve two reducers of a rank") {
  const Model model(float_params());
  const auto failures = run_threads(2, [&](Rank& self) {
    User u;
    const auto hook = hook_by_hand(&u);
    std::unique_ptr<Reducer> first, second;
    self.expect(make_reducer(self.comm, model, hook, &first), "create");
    self.expect(make_reducer(self.comm, model, hook, &second), "create");
    if (!first || !second) return;
    Gradients a(model), b(model);
    a.fill(1, self.rank);
    b.fill(2, self.rank);
    self.expect(first->begin(nullptr), "begin");
    self.expect(ready_all(*first, pointers(a), 0), "ready");
    self.expect(one_step(*second, b, 0), "second");
    self.expect(first->finish({}), "first");
    self.expect(differs(model, a.memory(), reference(model, {1}, 2, 2).memory()).empty(), "first's result");
    self.expect(differs(model, b.memory(), reference(model, {2}, 2, 2).memory()).empty(), "second's result");
  });
  check(failures);
}

namespace {

// Runs stages on a thread of its own, and completes them there.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  // Called after all work is posted and before the hook is destroyed.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  ~Worker() { stop(); }
  void post(const weft_bucket& bucket, const weft_stage_token& token) {
    {
      const std::lock_guard lock(mutex_);
      work_.emplace_back(bucket, token);
    }
    changed_.notify_one();
  }
  Hook* hook = nullptr;
  bool complete = true;
  User user;

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !work_.empty(); });
      if (work_.empty()) return;
      const auto [bucket, token] = work_.front();
      work_.erase(work_.begin());
      if (!complete) continue;
      lock.unlock();
      compute_by_hand(user, bucket, static_cast<uint32_t>(token.stage));
      complete_stage(*hook, token, WEFT_OK);
      complete_stage(*hook, token, WEFT_ERR_STATE);  // a repeated call does nothing
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<weft_bucket, weft_stage_token>> work_;
  bool stop_ = false;
  std::thread thread_;
};

std::shared_ptr<Hook> hook_on_worker(Worker* worker) {
  weft_hook_table table{};
  table.struct_size = sizeof table;
  table.name = "on_worker";
  table.plan = [](void* data, const weft_bucket* bucket, weft_hook_plan* plan, char* message) {
    return plan_by_hand(&static_cast<Worker*>(data)->user, bucket, plan, message);
  };
  table.stage = [](void* data, const weft_bucket* bucket, weft_stage* stage, char*) {
    stage->pending = 1;
    static_cast<Worker*>(data)->post(*bucket, stage->token);
    return WEFT_OK;
  };
  std::shared_ptr<Hook> hook;
  if (!make_hook_table(table, worker, &hook).ok()) return nullptr;
  worker->hook = hook.get();
  return hook;
}

struct StopFirst {
  Worker& worker;
  ~StopFirst() { worker.stop(); }
};

}  // namespace

TEST_CASE("stages may be completed later from another thread") {
  const Model model(float_params());
  for (const Engine::Mode mode : {Engine::Mode::kThread, Engine::Mode::kCaller}) {
    RanksOptions options;
    options.mode = mode;
    const auto failures = run_threads(
        3,
        [&](Rank& self) {
          Worker worker;
          std::unique_ptr<Reducer> reducer;
          const auto hook = hook_on_worker(&worker);
          const StopFirst stop_first{worker};
          self.expect(make_reducer(self.comm, model, hook, &reducer, {.limits = {100}}), "create");
          if (!reducer) return;
          Gradients gradients(model);
          for (uint64_t step = 0; step < 5; step++) {
            gradients.fill(step, self.rank);
            self.expect(one_step(*reducer, gradients, step), "step");
            self.expect(differs(model, gradients.memory(), reference(model, {step}, 3, 3).memory()).empty(),
                        "wrong result");
          }
        },
        options);
    check(failures);
  }
}

TEST_CASE("a stage that never completes fails the step at its deadline and is named") {
  const Model model({{"a", {10}}, {"b", {10}}});
  const auto failures = run_threads(2, [&](Rank& self) {
    Worker worker;
    worker.complete = self.rank != 1;
    std::unique_ptr<Reducer> reducer;
    const auto hook = hook_on_worker(&worker);
    const StopFirst stop_first{worker};
    self.expect(make_reducer(self.comm, model, hook, &reducer, {.timeout_ms = self.rank == 1 ? 100 : 60'000}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    const Status status = one_step(*reducer, gradients, 1);
    self.expect(status.code() == Code::kTimeout, "code: " + status.text());
    self.expect(has(status.text(), "hook 'on_worker' has not completed stage 0 of bucket 0 ['"),
                "text: " + status.text());
    self.expect(status.info().ranks == std::vector<int>{1}, "rank");
    self.expect(reducer->begin(nullptr).code() == Code::kTimeout, "unusable afterwards");
    reducer.reset();
  });
  check(failures);
}

TEST_CASE("a hook that fails on one rank fails the step on all with its message") {
  const Model model({{"a", {10}}, {"b", {10}}, {"c", {10}}});
  for (const int stage : {0, 1, 2}) {
    RankBarrier created(3);
    const auto failures = run_threads(3, [&](Rank& self) {
      User u;
      u.fail_in_stage = self.rank == 2 ? stage : -1;
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, hook_by_hand(&u), &reducer, {.limits = {0}}), "create");
      if (!reducer) return;
      self.expect(created.arrive(self), "all created");
      Gradients gradients(model);
      // Any of these calls may return the failure.
      const Status begun = reducer->begin(nullptr);
      const Status readied = begun.ok() ? ready_all(*reducer, pointers(gradients), 1) : begun;
      self.expect(readied.ok() || readied.code() == Code::kHook, "ready: " + readied.text());
      const Status status = begun.ok() ? reducer->finish({}) : begun;
      // In its last stage the failing rank owes the others nothing: they may have finished.
      if (stage == 2 && self.rank != 2 && status.ok()) return;
      self.expect(status.code() == Code::kHook, "code: " + status.text());
      self.expect(has(status.text(), "the matrix is singular") && has(status.text(), "'by_hand'") &&
                      has(status.text(), "rank 2, step 0, bucket 1 ['b'], stage " + std::to_string(stage)),
                  "text: " + status.text());
      self.expect(status.info().step == 0, "step");
      self.expect(reducer->error().code() == Code::kHook, "error()");
      self.expect(reducer->begin(nullptr).code() == Code::kHook, "unusable afterwards");
      weft_reducer_stats stats{};
      reducer->query(&stats);
      self.expect(stats.failed_steps == (begun.ok() ? 1 : 0) && stats.steps == 0, "statistics");
      weft_bucket_info info{};
      self.expect(reducer->bucket(1, &info, nullptr, 0), "bucket");
      self.expect(self.rank != 2 || info.done_ns == 0, "the failing bucket is not done");
    });
    check(failures);
  }
}

TEST_CASE("a bucket's encoding overlaps the transfer of the one before") {
  // Bucket 0's collective cannot end, because rank 1 is not ready for it. Bucket 1's first stage runs all the
  // same.
  const Model model({{"a", {10}}, {"b", {10}}});
  std::atomic<bool> encoded{false};
  const auto failures = run_threads(2, [&](Rank& self) {
    User u;
    const auto hook = hook_by_hand(&u);
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, hook, &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    Engine& engine = self.comm->context().engine();
    self.expect(reducer->begin(nullptr), "begin");
    const Deadline deadline = Deadline::after(self.comm->context().clock(), 60'000, 0);
    if (self.rank == 0) {
      self.expect(ready_all(*reducer, pointers(gradients), 1), "ready");
      // No stage of the hook runs while the test reads its records.
      using Stages = std::vector<std::pair<uint32_t, uint32_t>>;
      const auto stages = [&] {
        Stages seen;
        const auto look = [&] {
          seen = u.stages;
          return Status();
        };
        self.expect(with_turn(self.comm->context(), *hook, deadline, look), "a look at the stages");
        return seen;
      };
      self.expect(engine.wait([&] { return stages().size() >= 2; }, deadline), "encoded in time");
      self.expect(stages() == Stages{{0, 0}, {1, 0}}, "both first stages, and nothing else");
      encoded = true;
    } else {
      self.expect(engine.wait([&] { return encoded.load(); }, deadline), "rank 0 encoded");
      self.expect(ready_all(*reducer, pointers(gradients), 1), "ready");
    }
    self.expect(reducer->finish({}), "finish");
  });
  check(failures);
}

}  // namespace unit_reducer_hooks
