// lib/reducer/plan/relayout: ranges move within their memory; and re-plans that cause this.
#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "reducer/plan/relayout.h"
#include "reducer_rig.h"

namespace unit_reducer_relayout {

using namespace weft;
using namespace weft::test;

namespace {

struct Arrangement {
  std::vector<Move> moves;
  uint64_t size = 0;
  uint64_t longest = 0;
};

// Ranges of random lengths, shuffled, with random gaps before and after.
Arrangement draw(std::mt19937_64& random) {
  Arrangement a;
  a.moves.resize(random() % 40);
  std::vector<Move*> order;
  uint64_t from = 0, to = 0;
  for (Move& m : a.moves) {
    m.bytes = random() % 5 == 0 ? 0 : 1 + random() % 100;
    m.from = from += random() % 3 == 0 ? random() % 50 : 0;
    from += m.bytes;
    a.longest = std::max(a.longest, m.bytes);
    order.push_back(&m);
  }
  if (random() % 4 != 0) std::shuffle(order.begin(), order.end(), random);
  for (Move* m : order) {
    m->to = to += random() % 3 == 0 ? random() % 50 : 0;
    to += m->bytes;
  }
  a.size = std::max(from, to);
  std::shuffle(a.moves.begin(), a.moves.end(), random);
  return a;
}

}  // namespace

TEST_CASE("ranges move to their new places, with no more scratch than the longest of them") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 3000; round++) {
    const Arrangement a = draw(random);
    Bytes before(a.size + 1), after, scratch(a.longest + random() % 300);
    for (std::byte& b : before) b = static_cast<std::byte>(random());
    after = before;
    const std::byte fence = after.back();
    relayout(after.data(), a.moves, scratch.data(), scratch.size());
    INFO("round " << round);
    bool right = after.back() == fence;
    for (const Move& m : a.moves) {
      right &= std::equal(before.data() + m.from, before.data() + m.from + m.bytes, after.data() + m.to);
    }
    REQUIRE(right);
  }
}

TEST_CASE(
    "a re-plan rearranges the buckets' memory, and keeps what is in views and what local steps added up") {
  std::vector<TestParam> params;
  for (int i = 0; i < 60; i++) {
    const Dtype dtype = i % 5 == 0 ? Dtype::kBf16 : i % 7 == 0 ? Dtype::kF64 : Dtype::kF32;
    params.push_back({cat("p", i), {1 + (i * 37) % 91, 3}, dtype});
  }
  const Model model(params);
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    for (const uint64_t flags : {uint64_t{0}, uint64_t{WEFT_REDUCER_RETAIN}}) {
      check(run_threads(2, [&](Rank& self) {
        std::unique_ptr<Reducer> reducer;
        const RigOptions rig = {.mode = mode, .limits = {700, 3000}, .flags = flags};
        self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
        if (!reducer) return;
        weft_reducer_stats before{}, after{};
        reducer->query(&before);
        Gradients gradients(model);
        std::vector<std::byte*> places = pointers(gradients);
        const auto look = [&] {
          for (size_t i = 0; mode == WEFT_GRADIENT_VIEW && i < model.size(); i++) {
            void* view = nullptr;
            self.expect(reducer->grad_view(i, &view), "grad_view");
            places[i] = static_cast<std::byte*>(view);
          }
        };
        look();
        const auto [first, last] = std::minmax_element(places.begin(), places.end());
        const std::byte *const low = *first, *const high = *last;
        for (size_t i = 0; i < model.size(); i++) gradients.fill(i, 3, self.rank, places[i]);
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        begin.flags = WEFT_BEGIN_LOCAL;
        self.expect(reducer->begin(&begin), "begin");
        self.expect(ready_all(*reducer, places, 1), "ready");
        self.expect(reducer->finish({}), "finish");
        std::vector<uint64_t> sizes(model.size() / 2, 2), order;
        for (const Dtype dtype : {Dtype::kBf16, Dtype::kF64, Dtype::kF32}) {
          for (size_t i = model.size(); i-- > 0;) {
            if (model[i].dtype == dtype) order.push_back(i);
          }
        }
        sizes.assign(order.size(), 1);
        const weft_plan plan = {sizeof plan, sizes.size(), sizes.data(), order.data()};
        weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
        for (const uint64_t limit : {uint64_t{0}, uint64_t{5000}}) {
          options.plan = limit == 0 ? &plan : nullptr;
          options.bucket_limits = &limit;
          options.bucket_limit_count = 1;
          const Status done = reducer->replan(options);
          // No order has been recorded: the plan of one parameter a bucket stays.
          self.expect(limit == 0 ? done.ok() : done.code() == Code::kState, done.text());
        }
        reducer->query(&after);
        look();
        const auto inside = [&](const std::byte* at) { return at >= low && at <= high; };
        const auto placed = static_cast<size_t>(std::count_if(places.begin(), places.end(), inside));
        // The last of the old places need not be the last of the new ones.
        self.expect(mode == WEFT_GRADIENT_COPY || placed + 2 >= model.size(),
                    cat(placed, " views lie where the old ones did"));
        self.expect(after.bucket_bytes == before.bucket_bytes, "the memory of the buckets stays");
        self.expect(after.retained_bytes == before.retained_bytes, "and that of what is retained");
        self.expect(reducer->begin(nullptr), "begin");
        if (mode == WEFT_GRADIENT_COPY) gradients.fill(4, self.rank);
        self.expect(ready_all(*reducer, places, 1), "ready");
        self.expect(reducer->finish({}), "finish");
        const std::vector<uint64_t> seeds =
            mode == WEFT_GRADIENT_COPY ? std::vector<uint64_t>{3, 4} : std::vector<uint64_t>{3};
        const Gradients expected = reference(model, seeds, 2, 2);
        for (size_t i = 0; i < model.size(); i++) {
          self.expect(std::equal(expected.memory()[i].begin(), expected.memory()[i].end(), places[i]),
                      "wrong result in " + model[i].name);
        }
      }));
    }
  }
}

TEST_CASE("with replan set the second synchronised step begins with a re-plan by the order of readiness") {
  const Model model({{"a", {40}}, {"b", {40}}, {"c", {40}}, {"d", {40}}});
  for (const uint64_t uneven : {uint64_t{0}, uint64_t{WEFT_REDUCER_UNEVEN}}) {
    check(run_threads(3, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      const RigOptions rig = {.limits = {300}, .flags = uneven, .replan = WEFT_PLANNER_LIMITS};
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
      if (!reducer) return;
      // The state after step 2, also on a rank that then has no more data.
      const auto look = [&](const char* when) {
        weft_reducer_stats stats{};
        reducer->query(&stats);
        uint64_t first[2] = {9, 9};
        weft_bucket_info info{};
        self.expect(reducer->bucket(0, &info, first, 2), "bucket");
        self.expect(stats.plan_generation == 1 && first[0] == 2 && first[1] == 0, when);
      };
      Gradients gradients(model);
      for (uint64_t step = 0; step < 4; step++) {
        if (uneven != 0 && self.rank == 2 && step == 1) {
          self.expect(reducer->join({}, std::make_unique<weft_join_result>().get()), "join");
          return look("joined");
        }
        gradients.fill(step, self.rank);
        weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT;
        local.flags = WEFT_BEGIN_LOCAL;
        if (step == 1) {
          self.expect(reducer->begin(&local), "a local step does not re-plan");
          self.expect(reducer->finish({}), "finish local");
        }
        self.expect(reducer->begin(nullptr), "begin");
        for (const size_t i : {size_t{2}, size_t{0}, size_t{3}, size_t{1}}) {
          self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
        }
        self.expect(reducer->finish({}), "finish");
        if (step > 0) look("after the re-plan");
        if (uneven != 0) continue;
        self.expect(differs(model, gradients.memory(), reference(model, {step}, 3, 3).memory()).empty(),
                    cat("step ", step));
      }
      weft_join_result result{};
      if (uneven != 0) self.expect(reducer->join({}, &result), "join");
    }));
  }
}

TEST_CASE("a view from before a re-plan is refused, also if out-of-view gradients are copied") {
  const Model model({{"a", {40}}, {"b", {40}}, {"c", {40}}});
  for (const uint64_t strays : {uint64_t{0}, uint64_t{WEFT_REDUCER_COPY_STRAYS}}) {
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      const RigOptions rig = {.mode = WEFT_GRADIENT_VIEW, .limits = {100000}, .flags = strays};
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
      if (!reducer) return;
      const auto views = [&] {
        std::vector<void*> all(model.size());
        for (size_t i = 0; i < all.size(); i++) self.expect(reducer->grad_view(i, &all[i]), "grad_view");
        return all;
      };
      const std::vector<void*> before = views();
      self.expect(reducer->begin(nullptr), "begin");
      for (size_t i = model.size(); i-- > 0;) self.expect(reducer->ready(i, before[i], nullptr), "ready");
      self.expect(reducer->finish({}), "finish");
      self.expect(reducer->replan(WEFT_REPLAN_OPTIONS_INIT), "replan");
      const std::vector<void*> after = views();
      self.expect(before[0] != after[0] && before[0] == after[2], "the views have changed places");
      self.expect(reducer->begin(nullptr), "begin");
      const Status stale = reducer->ready(0, before[0], nullptr);
      self.expect(stale.code() == Code::kArg && stale.text().find("'a'") != std::string::npos &&
                      stale.text().find("re-plan") != std::string::npos,
                  stale.text());
      for (size_t i = 0; i < model.size(); i++) self.expect(reducer->ready(i, after[i], nullptr), "ready");
      self.expect(reducer->finish({}), "finish");
    }));
  }
}

TEST_CASE("a re-plan records what closed the buckets, and one to the same buckets moves nothing") {
  const Model model({{"a", {40}}, {"b", {40}}, {"c", {40}}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {100000}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    self.expect(reducer->begin(nullptr), "begin");
    for (size_t i = 0; i < model.size(); i++) self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    const auto replanned = [&](uint64_t limit, uint64_t generation) {
      weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
      options.bucket_limits = &limit;
      options.bucket_limit_count = 1;
      self.expect(reducer->replan(options), "replan");
      weft_reducer_stats stats{};
      reducer->query(&stats);
      self.expect(stats.plan_generation == generation, cat("generation ", stats.plan_generation));
      for (uint32_t b = 0; b < reducer->bucket_count(); b++) {
        weft_bucket_info info{};
        self.expect(reducer->bucket(b, &info, nullptr, 0), "bucket");
        self.expect(info.limit_bytes == limit, cat("limit ", info.limit_bytes, ", not ", limit));
      }
    };
    replanned(100000, 0);
    replanned(100, 1);
    replanned(120, 1);
    self.expect(reducer->bucket_count() == 3, "a bucket each");
  }));
}

TEST_CASE("of ranks with different recorded orders the lowest rank's order is used, if it had data") {
  const Model model({{"a", {40}}, {"b", {40}}, {"c", {40}}});
  const std::vector<std::vector<size_t>> orders = {{2, 0, 1}, {1, 2, 0}, {0, 1, 2}};
  for (const bool data_on_0 : {true, false}) {
    check(run_threads(3, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      const RigOptions rig = {.limits = {0}, .flags = WEFT_REDUCER_UNEVEN};
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
      if (!reducer) return;
      Gradients gradients(model);
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      const bool none = self.rank == 0 && !data_on_0;
      if (none) begin.flags = WEFT_BEGIN_NO_DATA;
      self.expect(reducer->begin(&begin), "begin");
      for (const size_t i : orders[static_cast<size_t>(self.rank)]) {
        if (!none) self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
      }
      self.expect(reducer->finish({}), "finish");
      self.expect(reducer->replan(WEFT_REPLAN_OPTIONS_INIT), "replan");
      for (uint32_t b = 0; b < 3; b++) {
        uint64_t param = 9;
        weft_bucket_info info{};
        self.expect(reducer->bucket(b, &info, &param, 1), "bucket");
        self.expect(param == orders[data_on_0 ? 0 : 1][b], cat("bucket ", b, " has parameter ", param));
      }
    }));
  }
}

TEST_CASE("limits of a re-plan stay in use, also if a rank that has joined provides the order") {
  const Model model({{"a", {40}}, {"b", {40}}, {"c", {40}}, {"d", {40}}});
  for (const uint64_t uneven : {uint64_t{0}, uint64_t{WEFT_REDUCER_UNEVEN}}) {
    check(run_threads(3, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      const RigOptions rig = {.limits = {300}, .flags = uneven, .replan = WEFT_PLANNER_LIMITS};
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
      if (!reducer) return;
      Gradients gradients(model);
      const auto step = [&](uint64_t flags) {
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        begin.flags = flags;
        self.expect(reducer->begin(&begin), "begin");
        for (const size_t i : {size_t{2}, size_t{0}, size_t{3}, size_t{1}}) {
          self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
        }
        self.expect(reducer->finish({}), "finish");
      };
      const auto replan = [&](const std::vector<uint64_t>& limits) {
        weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
        options.bucket_limits = limits.data();
        options.bucket_limit_count = static_cast<uint32_t>(limits.size());
        return reducer->replan(options);
      };
      const auto look = [&](uint32_t buckets, const std::vector<uint64_t>& limits, uint64_t generation,
                            const char* when) {
        weft_reducer_stats stats{};
        reducer->query(&stats);
        const auto said =
            nlohmann::json::parse(reducer->report())["reducer"]["bucket_limits"].get<std::vector<uint64_t>>();
        self.expect(reducer->bucket_count() == buckets && stats.plan_generation == generation,
                    cat(when, ": ", reducer->bucket_count(), " buckets, generation ", stats.plan_generation));
        self.expect(said == limits, cat(when, ": the limits are [", list_text(said), "]"));
      };
      step(0);
      look(2, {300}, 0, "as created");
      // Rank 0, whose order is used, has no more data, and is not asked for limits.
      if (uneven != 0 && self.rank == 0) {
        weft_join_result joined{};
        self.expect(reducer->join({}, &joined), "join");
        return look(3, {100, 200}, 2, "when all have joined");
      }
      const Status refused = replan({self.rank == 1 ? uint64_t{0} : uint64_t{100}});
      self.expect(refused.code() == Code::kMismatch, refused.text());
      look(2, {300}, 0, "after a re-plan that was refused");
      self.expect(replan({0}), "replan");
      look(4, {0}, 1, "after a re-plan");
      step(WEFT_BEGIN_RECORD);
      look(4, {0}, 1, "a begin does not re-plan once more");
      self.expect(replan({}), "replan without limits");
      look(4, {0}, 1, "after a re-plan that names none");
      self.expect(replan({100, 200}), "replan");
      self.expect(replan({}), "replan without limits");
      look(3, {100, 200}, 2, "after one that names two");
      weft_join_result joined{};
      if (uneven != 0) self.expect(reducer->join({}, &joined), "join");
    }));
  }
}

}  // namespace unit_reducer_relayout
