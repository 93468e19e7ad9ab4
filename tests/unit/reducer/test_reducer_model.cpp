// Re-plans by the cost model of a step (lib/reducer/plan/planner, survey): all ranks use the same plan, and
// gradients stay correct.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>

#include "device/arena.h"
#include "reducer_rig.h"
#include "shm/backend.h"

namespace unit_reducer_model {

using namespace weft;
using namespace weft::test;

namespace {

Model many_small() {
  std::vector<TestParam> params;
  for (int i = 0; i < 40; i++) params.push_back({cat("p", i), {1 + i % 7, 3}});
  return Model(params);
}

// Returns the parameters of each bucket.
std::vector<std::vector<uint64_t>> buckets_of(Reducer& reducer) {
  std::vector<std::vector<uint64_t>> out;
  for (uint32_t b = 0; b < reducer.bucket_count(); b++) {
    weft_bucket_info info{};
    std::vector<uint64_t> params(40);
    if (!reducer.bucket(b, &info, params.data(), params.size()).ok()) break;
    params.resize(info.param_count);
    out.push_back(params);
  }
  return out;
}

// A barrier of threads; the last one to arrive runs a function before the others continue.
class Gathering {
 public:
  explicit Gathering(int size) : size_(size) {}
  void run(const std::function<void()>& once) {
    std::unique_lock lock(mutex_);
    const int turn = turn_;
    if (++here_ == size_) {
      once();
      here_ = 0;
      turn_++;
      met_.notify_all();
      return;
    }
    met_.wait(lock, [&] { return turn_ != turn; });
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable met_;
  int here_ = 0, turn_ = 0;
};

Status replan(Reducer& reducer, int32_t planner) {
  weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
  options.planner = planner;
  return reducer.replan(options);
}

// The machine's clock, which can be stopped: then everything takes no time.
class HeldClock final : public Clock {
 public:
  uint64_t now_ns() override {
    const uint64_t held = held_ns_.load();
    return held != 0 ? held : system_.now_ns();
  }
  void relax(uint32_t round) override { system_.relax(round); }
  void sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t until_ns) override {
    system_.sleep(word, expected, std::min(until_ns, system_.now_ns() + 1'000'000));
  }
  void wake_all(const std::atomic<uint32_t>& word) override { system_.wake_all(word); }
  void hold() { held_ns_ = system_.now_ns(); }
  void release() { held_ns_ = 0; }

 private:
  SystemClock system_;
  std::atomic<uint64_t> held_ns_{0};
};

Status step_of(Reducer& reducer, Gradients& gradients, uint64_t seed, int rank) {
  gradients.fill(seed, rank);
  WEFT_TRY(reducer.begin(nullptr));
  WEFT_TRY(ready_all(reducer, pointers(gradients), 1));
  return reducer.finish({});
}

}  // namespace

TEST_CASE("gradients that are ready at once share a bucket, once the cost model has seen it") {
  const Model model = many_small();
  constexpr int kRanks = 3;
  std::vector<std::vector<std::vector<uint64_t>>> plans(kRanks);
  for (const bool by_itself : {false, true}) {
    for (const uint64_t uneven : {uint64_t{0}, uint64_t{WEFT_REDUCER_UNEVEN}}) {
      check(run_threads(kRanks, [&](Rank& self) {
        std::unique_ptr<Reducer> reducer;
        const RigOptions rig = {
            .limits = {0}, .flags = uneven, .replan = by_itself ? WEFT_PLANNER_MODEL : WEFT_PLANNER_NONE};
        self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
        if (!reducer) return;
        Gradients gradients(model);
        self.expect(step_of(*reducer, gradients, 0, self.rank), "the step that is noted");
        if (uneven != 0 && self.rank == 2) {
          self.expect(reducer->join({}, std::make_unique<weft_join_result>().get()), "join");
        } else {
          if (!by_itself) self.expect(replan(*reducer, WEFT_PLANNER_MODEL), "replan");
          for (uint64_t step = 1; step < 3; step++) {
            self.expect(step_of(*reducer, gradients, step, self.rank), "step");
            if (uneven != 0) continue;
            const Gradients expected = reference(model, {step}, kRanks, kRanks);
            self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "result");
          }
          weft_join_result result{};
          if (uneven != 0) self.expect(reducer->join({}, &result), "join");
        }
        weft_reducer_stats stats{};
        reducer->query(&stats);
        self.expect(stats.plan_generation == 1 && reducer->bucket_count() < 40,
                    cat(reducer->bucket_count(), " buckets after ", stats.plan_generation, " re-plans"));
        plans[static_cast<size_t>(self.rank)] = buckets_of(*reducer);
      }));
      CHECK((plans[0] == plans[1] && plans[0] == plans[2]));
    }
  }
}

TEST_CASE("ranks with different planners get an error, and keep their plan") {
  const Model model = many_small();
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    self.expect(step_of(*reducer, gradients, 0, self.rank), "step");
    const Status refused = replan(*reducer, self.rank == 0 ? WEFT_PLANNER_MODEL : WEFT_PLANNER_LIMITS);
    self.expect(refused.code() == Code::kMismatch, refused.text());
    self.expect(reducer->bucket_count() == 40, "the plan stays");
    self.expect(step_of(*reducer, gradients, 1, self.rank), "the reducer works");
  }));
}

TEST_CASE("an unknown planner, and a planner together with a program's own plan, are refused") {
  const Model model({{"a", {4}}, {"b", {4}}});
  check(run_threads(1, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {}), "create");
    if (!reducer) return;
    for (const int32_t planner : {-1, WEFT_PLANNER_NONE, 4}) {
      const Status unknown = replan(*reducer, planner);
      self.expect(unknown.code() == Code::kArg && has(unknown.text(), cat("planner is ", planner)),
                  unknown.text());
    }
    const uint64_t sizes[] = {2}, params[] = {0, 1};
    const weft_plan plan = {sizeof plan, 1, sizes, params};
    weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
    options.plan = &plan;
    options.planner = WEFT_PLANNER_MODEL;
    const Status both = reducer->replan(options);
    self.expect(both.code() == Code::kArg && has(both.text(), "WEFT_PLANNER_MODEL"), both.text());
  }));
}

TEST_CASE("if an arena has no room for measuring, buckets end at the limits and steps continue") {
  const Model model({{"a", {4}}, {"b", {4, 1024}}, {"c", {4}}});
  RanksOptions options;
  options.backend = &shm::backend();
  options.comm.arena_limit_bytes = 8 << 20;
  check(run_threads(
      2,
      [&](Rank& self) {
        std::unique_ptr<Reducer> reducer;
        self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                                 {.limits = {0}, .replan = WEFT_PLANNER_MODEL}),
                    "create");
        if (!reducer) return;
        std::byte* block = nullptr;
        while (self.rank == 1 && self.comm->collectives().arena()->allocate(Arena::kAlignment, &block).ok()) {
        }
        Gradients gradients(model);
        for (uint64_t step = 0; step < 3; step++) {
          gradients.fill(step, self.rank);
          self.expect(reducer->begin(nullptr), "begin");
          // Becomes ready in the order of the plan, which then stays as it is and needs no memory.
          for (const size_t param : {2, 1, 0}) {
            self.expect(reducer->ready(param, pointers(gradients)[param], nullptr), "ready");
          }
          self.expect(reducer->finish({}), "finish");
          const Gradients expected = reference(model, {step}, 2, 2);
          self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "result");
        }
        weft_reducer_stats stats{};
        reducer->query(&stats);
        self.expect(stats.plan_generation == 0, "another plan");
      },
      options));
}

TEST_CASE("if a rank has no memory for new buckets, all keep theirs: a begin continues, a call fails") {
  constexpr uint64_t kParams = 200;
  std::vector<TestParam> params;
  for (uint64_t i = 0; i < kParams; i++) params.push_back({cat("p", i), {1}});
  const Model model(params);
  std::vector<uint64_t> all(kParams);
  std::iota(all.begin(), all.end(), uint64_t{0});
  // By the limits each parameter has its own bucket.
  const weft_plan whole = {sizeof whole, 1, &kParams, all.data()};
  const uint64_t limit = 0;
  RanksOptions ranks;
  ranks.backend = &shm::backend();
  ranks.comm.arena_limit_bytes = 8 << 20;
  for (const uint64_t uneven : {uint64_t{0}, uint64_t{WEFT_REDUCER_UNEVEN}}) {
    const auto body = [&](Rank& self) {
      weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
      options.params = model.c().data();
      options.param_count = kParams;
      options.bucket_limits = &limit;
      options.bucket_limit_count = 1;
      options.plan = &whole;
      options.flags = uneven;
      options.replan = WEFT_PLANNER_LIMITS;
      std::unique_ptr<Reducer> reducer;
      self.expect(Reducer::create(self.comm, options, allreduce_hook(), &reducer), "create");
      if (!reducer) return;
      std::byte* block = nullptr;
      while (self.rank == 1 && self.comm->collectives().arena()->allocate(Arena::kAlignment, &block).ok()) {
      }
      Gradients gradients(model);
      const auto step = [&](uint64_t seed) {
        self.expect(step_of(*reducer, gradients, seed, self.rank), cat("step ", seed));
        const Gradients expected = reference(model, {seed}, 2, 2);
        self.expect(differs(model, gradients.memory(), expected.memory()).empty(), cat("result ", seed));
        weft_reducer_stats stats{};
        reducer->query(&stats);
        self.expect(stats.plan_generation == 0 && reducer->bucket_count() == 1, "another plan");
      };
      step(0);
      self.expect(has(reducer->report(), "\"plan_kept\": null"), "nothing was tried yet");
      for (uint64_t seed = 1; seed < 3; seed++) step(seed);
      self.expect(has(reducer->report(), "memory of the buckets"), reducer->report().substr(0, 900));
      const Status asked = replan(*reducer, WEFT_PLANNER_LIMITS);
      self.expect(asked.code() == Code::kNoMemory, asked.text());
      if (self.rank == 0) self.expect(has(asked.text(), "rank 1 cannot"), asked.text());
      const uint64_t other = 4;  // also has as many buckets
      weft_replan_options by_limits = WEFT_REPLAN_OPTIONS_INIT;
      by_limits.bucket_limits = &other;
      by_limits.bucket_limit_count = 1;
      self.expect(reducer->replan(by_limits).code() == Code::kNoMemory, "by other limits");
      const auto limits = nlohmann::json::parse(reducer->report())["reducer"]["bucket_limits"];
      self.expect(limits == std::vector<uint64_t>{0}, cat("limits ", limits.dump()));
      step(3);
    };
    check(run_threads(2, body, ranks));
  }
}

}  // namespace unit_reducer_model
