// State of steps before a re-plan, another communicator or a failure: no stale state may be taken for new
// state.
#include <functional>
#include <utility>

#include "bootstrap.h"
#include "registry.h"
#include "sparse_rig.h"

namespace unit_reducer_leftovers {

using namespace weft;
using namespace weft::test;

namespace {

// Called once, at this thread's next reading of the clock.
thread_local std::function<void()> at_look;

class WatchedClock final : public Clock {
 public:
  WatchedClock() { clock_.set_crowded(true); }
  uint64_t now_ns() override {
    if (at_look) std::exchange(at_look, nullptr)();
    return clock_.now_ns();
  }
  void relax(uint32_t round) override { clock_.relax(round); }
  void sleep(const std::atomic<uint32_t>& word, uint32_t expected, uint64_t until_ns) override {
    clock_.sleep(word, expected, until_ns);
  }
  void wake_all(const std::atomic<uint32_t>& word) override { clock_.wake_all(word); }

 private:
  SystemClock clock_;
};

// Runs ranks with a second communicator, with which they continue when the first has failed.
void run_with_spare(
    const std::function<void(Rank&, const std::shared_ptr<Comm>&, test::RankBarrier&)>& body) {
  const Registry registry("");
  test::RankBarrier rank_barrier(2);
  RanksOptions options;
  options.clock = std::make_shared<WatchedClock>();
  check(run_threads(
      2,
      [&](Rank& self) {
        std::shared_ptr<Comm> spare;
        self.expect(split(self.comm, registry, false, 0, self.rank, &spare), "split");
        if (spare) body(self, spare, rank_barrier);
      },
      options));
}

weft_begin_options begins(uint64_t flags) {
  weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
  begin.flags = flags;
  return begin;
}

// Called in an open step: all parameters but the absent ones become ready.
void hand_over(Rank& self, Reducer& reducer, Gradients& gradients, const std::vector<uint64_t>& absent = {}) {
  self.expect(reducer.absent(absent.data(), absent.size()), "absent");
  for (uint64_t i = 0; i < gradients.memory().size(); i++) {
    if (std::find(absent.begin(), absent.end(), i) != absent.end()) continue;
    self.expect(reducer.ready(i, gradients[i], nullptr), "ready");
  }
}

void fail(Rank& self, test::RankBarrier& rank_barrier) {
  self.expect(rank_barrier.arrive(self), "meeting");
  self.comm->fail(Status::error(Code::kCancelled, "enough"));
}

}  // namespace

TEST_CASE("a rebind clears the last step's state and accumulated gradients") {
  const Model model({{"a", {3}}, {"b", {5}}});
  run_with_spare([&](Rank& self, const std::shared_ptr<Comm>& spare, test::RankBarrier& rank_barrier) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_ABSENT}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    gradients.fill(1, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    hand_over(self, *reducer, gradients, self.rank == 0 ? std::vector<uint64_t>{1} : std::vector<uint64_t>{});
    self.expect(reducer->finish({}), "finish");
    weft_param_info info{};
    self.expect(reducer->param(1, &info).ok() && info.absent == (self.rank == 0), "absent from the step");
    const weft_begin_options local = begins(WEFT_BEGIN_LOCAL);
    self.expect(reducer->begin(&local), "begin a local step");
    hand_over(self, *reducer, gradients);
    self.expect(reducer->finish({}), "finish it");
    fail(self, rank_barrier);
    self.expect(reducer->rebind(spare), "rebind");

    const Status result = reducer->result(0, gradients[0]);
    self.expect(has(result.text(), "there is no result"), result.text());
    const Status waited = reducer->wait_param(0, WEFT_TIMEOUT_POLL);
    self.expect(has(waited.text(), "no synchronised step has begun"), waited.text());
    self.expect(reducer->param(1, &info).ok() && info.absent == 0, "absent from no step");
    weft_reducer_stats stats{};
    reducer->query(&stats);
    self.expect(stats.first_active == -1 && stats.last_active == -1, "ranks have other numbers");

    gradients.fill(2, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    hand_over(self, *reducer, gradients);
    self.expect(reducer->finish({}), "finish");
    const Gradients expected = reference(model, {2}, 2, 2);
    self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "the new step alone");
  });
}

TEST_CASE("after a re-plan waits for the last step return, and it has no results any more") {
  const Model model({{"a", {3}}, {"b", {5}}, {"c", {7}}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    self.expect(reducer->begin(nullptr), "begin");
    hand_over(self, *reducer, gradients);
    self.expect(reducer->finish({}), "finish");
    const uint64_t limit = 1000;
    weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    self.expect(reducer->replan(options), "re-plan");
    self.expect(reducer->bucket_count() == 1, "another plan");
    for (uint64_t i = 0; i < model.size(); i++) {
      self.expect(reducer->wait_param(i, WEFT_TIMEOUT_POLL), "its result is in its gradient");
    }
    const Status result = reducer->result(0, gradients[0]);
    self.expect(has(result.text(), "there is no result"), result.text());
    const uint64_t before_ns = self.comm->context().clock().now_ns();
    reducer.reset();
    self.expect(!self.comm->failed(), "it ends between steps");
    self.expect(self.comm->context().clock().now_ns() - before_ns < 1'900'000'000, "it waits for nothing");
  }));
}

TEST_CASE("a retry uses zeros for gradients that were absent everywhere, not an earlier step's values") {
  const Model model({{"a", {3}}, {"b", {5}}});
  run_with_spare([&](Rank& self, const std::shared_ptr<Comm>& spare, test::RankBarrier& rank_barrier) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                             {.mode = WEFT_GRADIENT_VIEW, .limits = {0}, .flags = WEFT_REDUCER_RETAIN}),
                "create");
    if (!reducer) return;
    std::vector<float*> views;
    for (uint64_t i = 0; i < model.size(); i++) {
      void* view = nullptr;
      self.expect(reducer->grad_view(i, &view), "view");
      views.push_back(static_cast<float*>(view));
      std::fill_n(views[i], model.count(i), 7.0f);
    }
    const auto ready = [&](uint64_t param) {
      self.expect(reducer->ready(param, views[param], nullptr), "ready");
    };
    self.expect(reducer->begin(nullptr), "begin");
    ready(0);
    ready(1);
    self.expect(reducer->finish({}), "a step in which both are there, and kept");
    const weft_begin_options fixed = begins(WEFT_BEGIN_FIXED);
    self.expect(reducer->begin(&fixed), "begin");
    const uint64_t absent = 1;  // in the bucket that is launched first
    self.expect(reducer->absent(&absent, 1), "absent");
    fail(self, rank_barrier);
    std::fill_n(views[0], model.count(0), 4.0f);
    ready(0);
    self.expect(!reducer->finish({}).ok(), "finish");
    self.expect(reducer->rebind(spare), "rebind");
    self.expect(reducer->retry({}), "retry");
    self.expect(views[0][0] == 4 && views[0][2] == 4, "the mean of what is there");
    self.expect(views[1][0] == 0 && views[1][4] == 0, "the view of what is not");
  });
}

TEST_CASE("a begin that fails half way leaves no step open") {
  const Model model({{"a", {3}}, {"b", {5}}});
  run_with_spare([&](Rank& self, const std::shared_ptr<Comm>& spare, test::RankBarrier& rank_barrier) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                             {.flags = WEFT_REDUCER_STATIC | WEFT_REDUCER_ABSENT}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer->finish({}), "the step that shows that b is not used");
    self.expect(rank_barrier.arrive(self), "meeting");
    at_look = [&] { self.comm->fail(Status::error(Code::kCancelled, "now")); };
    const Status begun = reducer->begin(nullptr);
    self.expect(begun.code() == Code::kCancelled, begun.text());
    self.expect(reducer->rebind(spare), "rebind, for which no step may be open");
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
  });
}

TEST_CASE("a call of ready that returns only after a rebind does not change the new state") {
  const Model model({{"a", {3}}});
  run_with_spare([&](Rank& self, const std::shared_ptr<Comm>& spare, test::RankBarrier& rank_barrier) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_RETAIN}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    self.expect(reducer->begin(nullptr), "begin the step that notes times");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer->finish({}), "finish it");
    gradients.fill(3, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    fail(self, rank_barrier);
    std::atomic<bool> counted{false}, go_on{false};
    Status ready;
    std::thread late([&] {
      // The gradient is in its bucket and counted; the call only has to record the time.
      at_look = [&] {
        counted = true;
        while (!go_on) std::this_thread::yield();
      };
      ready = reducer->ready(0, gradients[0], nullptr);
    });
    while (!counted) std::this_thread::yield();
    self.expect(!reducer->finish({}).ok(), "finish");
    self.expect(reducer->rebind(spare), "rebind");
    go_on = true;
    late.join();
    self.expect(ready, "ready");
    self.expect(reducer->retry({}), "retry");
    const Gradients expected = reference(model, {3}, 2, 2);
    self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "result");
  });
}

}  // namespace unit_reducer_leftovers
