// Orders of operations: agreements of reducers next to each other and to the program's own collectives, lanes
// that one rank cannot open, and refusals of one rank that all ranks must report.
#include <chrono>
#include <functional>
#include <utility>

#include "bootstrap.h"
#include "reducer_rig.h"
#include "registry.h"
#include "shm/backend.h"

namespace unit_reducer_lanes {

using namespace weft;
using namespace weft::test;

namespace {

using Milliseconds = std::chrono::milliseconds;

// The allreduce hook, with callbacks for the test when buckets or the communicator change.
class Told final : public Hook {
 public:
  std::function<Status()> on_replan, on_rebind;

  std::string name() const override { return "told"; }
  StageKind stage_kind() const override { return StageKind::kNothing; }
  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    plan->collective_count = 1;
    weft_hook_collective& c = plan->collectives[0];
    c.coll = WEFT_COLL_ALL_REDUCE;
    c.dtype = bucket.dtype;
    c.op = WEFT_OP_AVG;
    c.count = bucket.count;
    return {};
  }
  Status stage(const weft_bucket&, weft_stage*) override { return {}; }
  Status replan(uint64_t) override { return on_replan ? on_replan() : Status(); }
  Status rebind(int, int) override { return on_rebind ? on_rebind() : Status(); }
};

RanksOptions bounded(const Backend* backend = nullptr) {
  RanksOptions options;
  options.backend = backend;
  options.comm.init_timeout_ms = options.comm.op_timeout_ms = 20'000;
  return options;
}

bool leaves_out(uint64_t step, int rank, size_t param) {
  return (step + param + static_cast<uint64_t>(rank)) % 3 == 2;  // never both of two ranks
}

// Runs steps of an f32 reducer on two ranks, on any thread, with absent parameters that receive the others'
// values. Returns the failure, or "".
std::string train(Reducer& reducer, const Model& model, int rank, uint64_t steps, uint64_t seed) {
  Gradients gradients(model);
  std::vector<void*> places;
  for (std::byte* place : pointers(gradients)) places.push_back(place);
  for (uint64_t step = 0; step < steps; step++) {
    gradients.fill(seed + step, rank);
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.gradients = places.data();
    Status status = reducer.begin(&begin);
    for (uint64_t i = 0; i < model.size() && status.ok(); i++) {
      status = leaves_out(step, rank, i) ? reducer.absent(&i, 1) : reducer.ready(i, gradients[i], nullptr);
    }
    if (status.ok()) status = reducer.finish({});
    if (!status.ok()) return cat("step ", step, ": ", status.text());
    for (size_t i = 0; i < model.size(); i++) {
      for (uint64_t k = 0; k < model.count(i); k++) {
        double sum = 0;
        for (const int r : {0, 1}) sum += leaves_out(step, r, i) ? 0 : value(seed + step, r, i, k);
        float result;
        std::memcpy(&result, gradients[i] + k * sizeof result, sizeof result);
        if (result != static_cast<float>(sum / 2)) return cat("step ", step, ": wrong ", model[i].name);
      }
    }
  }
  return "";
}

uint64_t plans(const Reducer& reducer) {
  weft_reducer_stats stats{};
  reducer.query(&stats);
  return stats.plan_generation;
}

const RigOptions kReplans = {.limits = {0}, .flags = WEFT_REDUCER_ABSENT, .replan = WEFT_PLANNER_LIMITS};

}  // namespace

TEST_CASE("reducers on two threads of a rank re-plan automatically in any order") {
  const Model first({{"a", {3}}, {"b", {5}}, {"c", {7}}}), second({{"x", {40}}, {"y", {2}}});
  for (const Backend* backend : {static_cast<const Backend*>(nullptr), &shm::backend()}) {
    check(run_threads(
        2,
        [&](Rank& self) {
          const Model* const models[] = {&first, &second};
          std::unique_ptr<Reducer> reducers[2];
          for (int n = 0; n < 2; n++) {
            auto hook = std::make_shared<Told>();
            // On rank 0 the first reducer agrees on its plan before the second one, on rank 1 after it.
            hook->on_replan = [late = n != self.rank] {
              if (late) std::this_thread::sleep_for(Milliseconds(150));
              return Status();
            };
            self.expect(make_reducer(self.comm, *models[n], hook, &reducers[n], kReplans), "create");
            if (!reducers[n]) return;
          }
          std::string wrong[2];
          std::thread other([&] { wrong[1] = train(*reducers[1], second, self.rank, 6, 100); });
          wrong[0] = train(*reducers[0], first, self.rank, 6, 1);
          other.join();
          for (int n = 0; n < 2; n++) {
            self.expect(wrong[n].empty(), cat("reducer ", n, ", ", wrong[n]));
            self.expect(plans(*reducers[n]) == 1, cat("reducer ", n, " has not re-planned"));
          }
        },
        bounded(backend)));
  }
}

TEST_CASE("a program's collective runs concurrently with a begin that re-plans") {
  const Model model({{"a", {3}}, {"b", {5}}});
  for (const Backend* backend : {static_cast<const Backend*>(nullptr), &shm::backend()}) {
    check(run_threads(
        2,
        [&](Rank& self) {
          std::atomic<bool> replans{false};
          auto hook = std::make_shared<Told>();
          hook->on_replan = [&] {
            replans = true;
            if (self.rank == 0) std::this_thread::sleep_for(Milliseconds(150));
            return Status();
          };
          std::unique_ptr<Reducer> reducer;
          self.expect(make_reducer(self.comm, model, hook, &reducer, kReplans), "create");
          if (!reducer) return;
          int32_t sum = self.rank + 1;
          Status called;
          std::thread other([&] {
            // Before rank 0 agrees on its plan, and after rank 1 has started to agree.
            Engine& engine = self.comm->context().engine();
            engine.wait([&] { return replans.load(); }, Deadline::after(engine.clock(), 20'000, 0));
            if (self.rank == 1) std::this_thread::sleep_for(Milliseconds(150));
            CollectiveArgs args;
            args.coll = Coll::kAllReduce;
            args.dtype = Dtype::kI32;
            args.op = ReduceOp::kSum;
            args.count = 1;
            args.src = args.dst = reinterpret_cast<std::byte*>(&sum);
            called = self.run(args);
          });
          const std::string wrong = train(*reducer, model, self.rank, 4, 1);
          other.join();
          self.expect(wrong.empty(), wrong);
          self.expect(called, "the program's collective");
          self.expect(sum == 3, "its sum");
          self.expect(plans(*reducer) == 1, "it has not re-planned");
        },
        bounded(backend)));
  }
}

namespace {

// Expects that all ranks report one rank's refusal at once, and that nothing has failed.
void expect_refused(Rank& self, Comm& comm, const std::function<Status()>& call, Code code,
                    const std::string& doing, const std::string& why) {
  const uint64_t before_ns = comm.context().clock().now_ns();
  const Status refused = call();
  const std::string text = self.rank == 1 ? why : cat("rank 1 cannot ", doing, ": ", why);
  self.expect(refused.code() == code && has(refused.text(), text),
              cat(code_name(refused.code()), " '", refused.text(), "', not '", text, "'"));
  if (self.rank != 1) self.expect(refused.info().ranks == std::vector<int>{1}, "which rank");
  self.expect(comm.context().clock().now_ns() - before_ns < 10'000'000'000, "the deadline is waited for");
  self.expect(!comm.failed(), "the communicator has failed");
}

// Runs a reducer of two ranks, with a communicator to which it can be bound.
void run_bound(const std::function<void(Rank&, Told&, Reducer&, const std::shared_ptr<Comm>&)>& body) {
  const Model model({{"a", {3}}, {"b", {5}}});
  const Registry registry("");
  check(run_threads(
      2,
      [&](Rank& self) {
        std::shared_ptr<Comm> spare;
        self.expect(split(self.comm, registry, false, 0, self.rank, &spare), "split");
        auto hook = std::make_shared<Told>();
        std::unique_ptr<Reducer> reducer;
        self.expect(make_reducer(self.comm, model, hook, &reducer, {.flags = WEFT_REDUCER_ABSENT}), "create");
        if (!spare || !reducer) return;
        body(self, *hook, *reducer, spare);
        self.expect(reducer->rebind(spare), "rebind");
        const std::string wrong = train(*reducer, model, self.rank, 3, 1);
        self.expect(wrong.empty(), wrong);
      },
      bounded()));
}

}  // namespace

TEST_CASE("a rank that cannot be bound to another communicator fails the rebind on all, and all may retry") {
  run_bound([&](Rank& self, Told&, Reducer& reducer, const std::shared_ptr<Comm>& spare) {
    weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT;
    local.flags = WEFT_BEGIN_LOCAL;
    if (self.rank == 1) self.expect(reducer.begin(&local), "begin");
    expect_refused(
        self, *spare, [&] { return reducer.rebind(spare); }, Code::kState, "bind its reducer",
        "rebind inside a local step: finish it first");
    if (self.rank == 1) self.expect(reducer.finish({}), "finish");
  });
}

TEST_CASE("a hook that refuses another communicator on one rank is an error by name on all") {
  run_bound([&](Rank& self, Told& hook, Reducer& reducer, const std::shared_ptr<Comm>& spare) {
    if (self.rank == 1) hook.on_rebind = [] { return Status::error(Code::kHook, "told stays where it is"); };
    for (int time = 0; time < 2; time++) {
      expect_refused(
          self, *spare, [&] { return reducer.rebind(spare); }, Code::kHook, "bind its reducer",
          "told stays where it is");
    }
    hook.on_rebind = nullptr;
  });
}

namespace {

thread_local bool refuses_lanes = false;

// shm, on which a rank can be made unable to open lanes.
class Unwilling final : public Collectives {
 public:
  explicit Unwilling(std::unique_ptr<Collectives> inner) : inner_(std::move(inner)) {}
  Status open_lane(const LaneKey& key, std::unique_ptr<CollectiveLane>* lane) override {
    if (refuses_lanes) return Status::error(Code::kNoMemory, "no memory for another lane");
    return inner_->open_lane(key, lane);
  }
  bool few_lanes() const override { return inner_->few_lanes(); }
  bool executes(Coll coll) const override { return inner_->executes(coll); }
  std::shared_ptr<Arena> arena() override { return inner_->arena(); }
  CollectiveCounters counters() const override { return inner_->counters(); }
  int local_size() const override { return inner_->local_size(); }
  const char* name() const override { return inner_->name(); }

 private:
  const std::unique_ptr<Collectives> inner_;
};

Status make_unwilling(const BackendArgs& args, std::unique_ptr<Collectives>* collectives) {
  std::unique_ptr<Collectives> inner;
  WEFT_TRY(shm::backend().make_collectives(args, &inner));
  *collectives = std::make_unique<Unwilling>(std::move(inner));
  return {};
}

}  // namespace

TEST_CASE("a lane that one rank cannot open is an error by name on all, any number of times") {
  Backend unwilling = shm::backend();
  unwilling.make_collectives = make_unwilling;
  const Model model({{"a", {3}}, {"b", {5}}});
  check(run_threads(
      2,
      [&](Rank& self) {
        const RigOptions rig = {.flags = WEFT_REDUCER_ABSENT};
        // Nearly as many as there are lanes: a refused lane is not lost.
        std::vector<std::unique_ptr<Reducer>> reducers(60);
        for (std::unique_ptr<Reducer>& reducer : reducers) {
          const auto create = [&] {
            return make_reducer(self.comm, model, std::make_shared<Told>(), &reducer, rig);
          };
          refuses_lanes = self.rank == 1;
          expect_refused(self, *self.comm, create, Code::kNoMemory, "create the reducer",
                         "no memory for another lane");
          refuses_lanes = false;
          self.expect(create(), "create");
          if (!reducer) return;
          refuses_lanes = self.rank == 1;
          expect_refused(
              self, *self.comm, [&] { return reducer->rebind(self.comm); }, Code::kNoMemory,
              "bind its reducer", "no memory for another lane");
          refuses_lanes = false;
          const std::string wrong = train(*reducer, model, self.rank, 2, 1);
          self.expect(wrong.empty(), wrong);
        }
        reducers.resize(1);
        self.expect(reducers[0]->rebind(self.comm), "rebind");
        const std::string wrong = train(*reducers[0], model, self.rank, 2, 1);
        self.expect(wrong.empty(), wrong);
      },
      bounded(&unwilling)));
}

}  // namespace unit_reducer_lanes
