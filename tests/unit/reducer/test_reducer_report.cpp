// A reducer's report on its steps: times, percentiles, stragglers, and every byte that it holds.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "loopback/loopback.h"
#include "reducer/history.h"
#include "reducer_rig.h"
#include "shm/backend.h"
#include "support/simulation.h"

namespace unit_reducer_report {

using namespace weft;
using namespace weft::test;
using Json = nlohmann::json;

namespace {

weft_reducer_stats stats_of(const Reducer& reducer) {
  weft_reducer_stats stats{};
  reducer.query(&stats);
  return stats;
}

// About a ResNet: 60 gradients of 256 KiB and 60 of 256 bytes.
Model layers() {
  std::vector<TestParam> params;
  for (int i = 0; i < 60; i++) {
    params.push_back({cat("layer", i, ".weight"), {256, 256}});
    params.push_back({cat("layer", i, ".bias"), {64}});
  }
  return Model(params);
}

}  // namespace

TEST_CASE("means cover all steps, percentiles the last 128") {
  History history;
  CHECK(history.percentile(&StepTimes::step_ns, 50) == 0);
  for (uint64_t i = 0; i < 128; i++) history.add({.step_ns = 1'000'000, .exposed_ns = 5});
  CHECK(history.percentile(&StepTimes::step_ns, 99) == 1'000'000);
  for (uint64_t i = 128; i > 0; i--) history.add({.step_ns = i, .exposed_ns = 5});
  CHECK(history.percentile(&StepTimes::step_ns, 1) == 2);
  CHECK(history.percentile(&StepTimes::step_ns, 50) == 64);
  CHECK(history.percentile(&StepTimes::step_ns, 99) == 127);
  CHECK(history.percentile(&StepTimes::step_ns, 100) == 128);
  CHECK(history.mean(&StepTimes::step_ns) == (128 * 1'000'000 + 128 * 129 / 2) / 256);
  CHECK(history.mean(&StepTimes::exposed_ns) == 5);
  history.add_waits({0, 7, 9}, {2, 9});
  history.add_waits({0, 0, 0}, {});
  history.add_waits({3, 2, 0}, {0, 3});
  CHECK(history.straggler().rank == 0);
  CHECK(history.straggler().ns == 3);
  CHECK(history.waited()[1].ns == 9);
  CHECK(history.waited()[2].last == 1);
  CHECK(history.waited()[2].last_ns == 9);
  CHECK(history.waited_steps() == 3);
}

TEST_CASE("the straggler over time is the rank that cost most, not the one that was last most often") {
  History history;
  CHECK(history.steady_straggler() == -1);
  history.add_waits({0, 0, 0}, {});
  CHECK(history.steady_straggler() == -1);
  for (int i = 0; i < 3; i++) history.add_waits({0, 2, 0}, {1, 2});
  history.add_waits({0, 0, 7}, {2, 7});
  CHECK(history.steady_straggler() == 2);
  CHECK(history.waited_steps() == 5);
  history.forget_waits(2);  // the ranks have new numbers
  CHECK(history.steady_straggler() == -1);
  CHECK(history.waited_steps() == 0);
  history.add_waits({0, 4}, {1, 4});
  CHECK(history.steady_straggler() == 1);
  CHECK(history.waited_steps() == 1);
}

TEST_CASE("the report names the straggler over time in a sentence") {
  const Model model(mixed_params());
  Simulation simulation(5, 3);
  check(simulation
            .run([&](Rank& self) {
              std::unique_ptr<Reducer> reducer;
              self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
              if (!reducer) return;
              self.expect(Json::parse(reducer->report())["straggler"].is_null(), "before any step");
              Gradients gradients(model);
              for (int step = 0; step < 4; step++) {
                const int late = step == 0 ? 1 : 2;
                const uint64_t begin_ns = self.comm->context().clock().now_ns();
                self.expect(reducer->begin(nullptr), "begin");
                while (self.rank == late && self.comm->context().clock().now_ns() < begin_ns + 50'000'000) {
                  simulation.pause();
                }
                for (size_t i = 0; i < model.size(); i++) {
                  self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
                }
                self.expect(reducer->finish({}), "finish");
              }
              const Json straggler = Json::parse(reducer->report()).value("straggler", Json());
              self.expect(straggler.is_object(), "a straggler");
              if (!straggler.is_object()) return;
              self.expect(straggler["rank"] == 2 && straggler["steps"] == 3 && straggler["of_steps"] == 4,
                          straggler.dump());
              const uint64_t mean_ns = straggler["mean_ns"];
              self.expect(mean_ns > 10'000'000 && mean_ns < 100'000'000, straggler.dump());
              char text[80];
              std::snprintf(text, sizeof text, "rank 2 was last in 75 %% of 4 steps, by %.1f ms on average",
                            static_cast<double>(mean_ns) / 1e6);
              self.expect(straggler["text"] == text, straggler.dump());
            })
            .failures);
}

TEST_CASE("the late rank is reported as the straggler on all ranks, itself included") {
  const Model model(mixed_params());
  Simulation simulation(11, 3);
  check(simulation
            .run([&](Rank& self) {
              std::unique_ptr<Reducer> reducer;
              self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
              if (!reducer) return;
              Gradients gradients(model);
              for (int step = 0; step < 6; step++) {
                const int late = 1 + step % 2;
                const uint64_t begin_ns = self.comm->context().clock().now_ns();
                self.expect(reducer->begin(nullptr), "begin");
                while (self.rank == late && self.comm->context().clock().now_ns() < begin_ns + 50'000'000) {
                  simulation.pause();
                }
                for (size_t i = 0; i < model.size(); i++) {
                  self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
                }
                self.expect(reducer->finish({}), "finish");
                const weft_reducer_stats stats = stats_of(*reducer);
                self.expect(stats.straggler == late, cat("straggler ", stats.straggler, ", not ", late));
                self.expect(stats.straggler_ns > 10'000'000 && stats.straggler_ns < 100'000'000,
                            cat("waited ", stats.straggler_ns, " ns"));
                const Json waited = Json::parse(reducer->report())["last_step"]["waited_ns"];
                for (int r = 0; r < 3 && self.rank == late; r++) {
                  self.expect(waited[static_cast<size_t>(r)] < 20'000'000, "the late rank waits for nobody");
                }
              }
              const Json ranks = Json::parse(reducer->report())["ranks"];
              self.expect(ranks[1]["steps_last"] == 3 && ranks[2]["steps_last"] == 3, "last");
              self.expect(ranks[1]["steps_last_ns"] > 30'000'000, "and how long in these");
            })
            .failures);
}

TEST_CASE("the report contains the options, the last step, the buckets and the last error") {
  const Model model(mixed_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                             {.limits = {0}, .flags = WEFT_REDUCER_ABSENT}),
                "create");
    if (!reducer) return;
    Json report = Json::parse(reducer->report());
    self.expect(report["steps"]["synchronised"] == 0 && !report.contains("error"), "before any step");
    Gradients gradients(model);
    const uint64_t last = model.size() - 1;  // launched first
    for (int step = 0; step < 3; step++) {
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      if (step == 2) begin.flags = WEFT_BEGIN_FIXED;
      self.expect(reducer->begin(&begin), "begin");
      self.expect(reducer->absent(&last, 1), "absent");
      for (size_t i = 0; i < last; i++) self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
      self.expect(!reducer->ready(0, gradients[0], nullptr).ok(), "ready twice");
      self.expect(reducer->finish({}), "finish");
    }
    report = Json::parse(reducer->report());
    const weft_reducer_stats stats = stats_of(*reducer);
    self.expect(report["reducer"]["hook"] == allreduce_hook()->name(), "the hook's name");
    const Json flags = Json::array({"absent"});
    self.expect(report["reducer"]["mode"] == "copy" && report["reducer"]["flags"] == flags &&
                    report["reducer"]["replan"] == "none",
                "mode");
    self.expect(report["reducer"]["parameter_bytes"] == stats.param_bytes && stats.param_bytes > 0, "bytes");
    self.expect(report["steps"]["synchronised"] == 3, "steps");
    const Json& step = report["last_step"];
    self.expect(step["skipped_buckets"] == 1 && step["absent_parameters"] == 1, "absent");
    self.expect(stats.absent_bytes == model.count(last) * dtype_size(model[last].dtype),
                "bytes of the absent");
    self.expect(step["ready_order"].size() == model.size() && step["ready_order"].back() == last, "order");
    // Although the first bucket was not communicated.
    self.expect(stats.communication_ns > 0 && stats.communication_ns <= stats.step_ns, "communication");
    self.expect(stats.compute_ns + stats.exposed_ns == stats.step_ns, "computing and finish are the step");
    self.expect(stats.overlap_ns <= stats.compute_ns && stats.overlap_ns <= stats.communication_ns,
                "overlap");
    self.expect(stats.step_p50_ns > 0 && stats.step_p50_ns <= stats.step_p99_ns, "percentiles");
    self.expect(report["percentiles_ns"]["step"]["50"] == stats.step_p50_ns, "percentiles in the report");
    self.expect(report["buckets"].size() == model.size(), "buckets");
    self.expect(report["buckets"][0]["skipped"] == true && report["buckets"][0]["sent_bytes"] == 0,
                "skipped");
    uint64_t sent = 0;
    for (uint32_t b = 0; b < reducer->bucket_count(); b++) {
      weft_bucket_info info{};
      self.expect(reducer->bucket(b, &info, nullptr, 0), "bucket");
      sent += info.sent_bytes;
      self.expect(info.transfer_ns <= stats.step_ns, "transfer");
    }
    self.expect(sent > 0 && sent < stats.sent_bytes, "bytes of the last step, of all steps");
    const std::string error = report["error"]["text"];
    self.expect(has(error, "became ready twice"), "the last error");
  }));
}

TEST_CASE("the bytes that buckets sent in a step equal the backend's counters") {
  const Model model = layers();
  for (const Backend* backend : {&loopback::backend(), &shm::backend()}) {
    INFO(backend->name);
    RanksOptions options;
    options.backend = backend;
    check(run_threads(
        3,
        [&](Rank& self) {
          std::unique_ptr<Reducer> reducer;
          self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {}}), "create");
          if (!reducer) return;
          Gradients gradients(model);
          const auto counted = [&] {
            const CollectiveCounters counters = self.comm->collectives().counters();
            return counters.bytes_sent + counters.bytes_shared + counters.bytes_direct;
          };
          for (int step = 0; step < 2; step++) {
            const uint64_t before = counted();
            self.expect(reducer->begin(nullptr), "begin");
            self.expect(ready_all(*reducer, pointers(gradients), 0), "ready");
            self.expect(reducer->finish({}), "finish");
            uint64_t sent = 0;
            for (uint32_t b = 0; b < reducer->bucket_count(); b++) {
              weft_bucket_info info{};
              self.expect(reducer->bucket(b, &info, nullptr, 0), "bucket");
              self.expect(info.sent_bytes > 0, "of each bucket");
              sent += info.sent_bytes;
            }
            self.expect(sent == counted() - before, cat(sent, " bytes, counted ", counted() - before));
          }
        },
        options));
  }
}

TEST_CASE("the report contains each parameter's ready time, of the last step that recorded it") {
  const Model model({{"one", {2}}, {"two", {3}}, {"three", {4}}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                             {.flags = WEFT_REDUCER_ABSENT, .reduce_dtype = WEFT_DTYPE_BF16}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    const uint64_t order[] = {2, 0, 1};
    uint64_t before[3] = {}, between_ns = 0;
    for (int step = 0; step < 4; step++) {
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      if (step == 2) begin.flags = WEFT_BEGIN_RECORD;
      self.expect(reducer->begin(&begin), "begin");
      Clock& clock = self.comm->context().clock();
      const uint64_t begun_ns = clock.now_ns();
      for (const uint64_t i : order) {
        if (step == 2 && i == 1) between_ns = clock.now_ns() - begun_ns;
        const bool absent = step == 2 && i == 0;
        self.expect(absent ? reducer->absent(&i, 1) : reducer->ready(i, gradients[i], nullptr), "ready");
      }
      self.expect(reducer->finish({}), "finish");
      const Json ready_ns = Json::parse(reducer->report())["last_step"]["ready_times_ns"];
      const weft_reducer_stats stats = stats_of(*reducer);
      self.expect(ready_ns.size() == model.size(), "one for each");
      for (uint64_t i = 0; i < model.size(); i++) {
        if (step == 2 && i == 0) {
          self.expect(ready_ns[i].is_null(), "absent");
          before[i] = 0;
          continue;
        }
        const uint64_t ns = ready_ns[i].is_null() ? 0 : ready_ns[i].get<uint64_t>();
        if (step == 1 || step == 3) self.expect(ns == before[i], "that of the last noted step");
        if (step == 0) self.expect(ns > 0 && ns <= stats.compute_ns, "in the first step");
        before[i] = ns;
      }
      if (step == 2) self.expect(before[2] <= before[1] && before[1] >= between_ns, "since the begin");
    }
    const Json setting = Json::parse(reducer->report())["reducer"];
    self.expect(setting["reduce_dtype"] == "bf16" && setting["buffers_root"].is_null(), "settings");
    self.expect(setting["check_interval"] == 0, "check_interval");
  }));
}

TEST_CASE("a pattern that never changed is reported as static, and one that did is not") {
  const Model model({{"one", {2}}, {"two", {3}}, {"three", {4}}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_ABSENT}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (int step = 0; step < 6; step++) {
      const uint64_t absent = self.rank == 0 && step == 4 ? 1 : 2;
      self.expect(reducer->begin(nullptr), "begin");
      for (uint64_t i = 0; i < 3; i++) {
        self.expect(i == absent ? reducer->absent(&i, 1) : reducer->ready(i, gradients[i], nullptr), "ready");
      }
      self.expect(reducer->finish({}), "finish");
      const bool same = Json::parse(reducer->report())["steps"]["same_pattern"];
      self.expect(same == (self.rank == 1 || step < 4), "same pattern");
    }
  }));
}

TEST_CASE("the report names what a step does, and nothing of features that are not in use") {
  const Model model({{"one", {2}}, {"two", {3}}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> plain, uneven;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &plain), "create");
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &uneven,
                             {.flags = WEFT_REDUCER_ABSENT | WEFT_REDUCER_UNEVEN | WEFT_REDUCER_RETAIN}),
                "create");
    if (!plain || !uneven) return;
    Json program = Json::parse(plain->report())["program"];
    self.expect(program["collectives"] == Json{"bucket 0: all_reduce"}, program.dump());
    Json& bucket = program["buckets"][0];
    self.expect(bucket["copy"] == Json{"copy"}, program.dump());
    self.expect(bucket["prepare"] == Json{"clear absent parameters"}, program.dump());  // WEFT_BEGIN_FIXED
    self.expect(bucket["return"] == Json{"return"}, program.dump());
    program = Json::parse(uneven->report())["program"];
    self.expect(program["collectives"] ==
                    Json{"handshake: all_gather", "absent parameters: all_reduce", "bucket 0: all_reduce"},
                program.dump());
    self.expect(program["buckets"][0]["prepare"] == Json{"clear absent parameters", "retain"},
                program.dump());
  }));
}

TEST_CASE("the report names what runs between the collectives of a bucket") {
  class Idle final : public Hook {
   public:
    std::string name() const override { return "idle"; }
    Status plan(const weft_bucket&, weft_hook_plan*) override { return {}; }
    Status stage(const weft_bucket&, weft_stage*) override { return {}; }
  };
  const Model model({{"dense", {2}}, {.name = "sparse", .shape = {3, 2}, .sparse_ndim = 1}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> plain, hooked;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &plain), "create");
    self.expect(make_reducer(self.comm, model, std::make_shared<Idle>(), &hooked), "create");
    if (!plain || !hooked) return;
    Json program = Json::parse(plain->report())["program"];
    self.expect(program["collectives"][0] == "bucket 0 (sum of entries): all_gather", program.dump());
    self.expect(program["buckets"][0]["stages"] == "sum of entries", program.dump());
    self.expect(program["buckets"][1]["stages"] == "none", program.dump());
    program = Json::parse(hooked->report())["program"];
    self.expect(program["buckets"][1]["stages"] == "hook", program.dump());
  }));
}

TEST_CASE("the report lists every byte, of which all but 2 % are gradients") {
  const Model model = layers();
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      self.expect(
          make_reducer(self.comm, model, allreduce_hook(), &reducer,
                       {.mode = mode, .limits = {}, .flags = WEFT_REDUCER_ABSENT | WEFT_REDUCER_UNEVEN}),
          "create");
      if (!reducer) return;
      Gradients gradients(model);
      std::vector<std::byte*> places = pointers(gradients);
      for (size_t i = 0; mode == WEFT_GRADIENT_VIEW && i < model.size(); i++) {
        void* view = nullptr;
        self.expect(reducer->grad_view(i, &view), "grad_view");
        places[i] = static_cast<std::byte*>(view);
      }
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(ready_all(*reducer, places, 0), "ready");
      self.expect(reducer->finish({}), "finish");
      const weft_reducer_stats stats = stats_of(*reducer);
      uint64_t named = 0;
      const Json report = Json::parse(reducer->report());
      for (const auto& [what, bytes] : report["memory"].items()) {
        named += bytes.get<uint64_t>();
      }
      self.expect(named == stats.bucket_bytes + stats.scratch_bytes + stats.hook_bytes +
                               stats.retained_bytes + stats.other_bytes,
                  "the parts are the whole");
      self.expect(named >= stats.param_bytes, "one set of buckets, in view mode the gradients themselves");
      // Listed separately: the scratch of a running re-plan.
      uint64_t largest = 0;
      for (const Json& bucket : report["buckets"])
        largest = std::max(largest, bucket["bytes"].get<uint64_t>());
      self.expect(largest > 0 && report["replan"]["scratch_bytes"] == largest, "the largest bucket");
      // Its size is bounded: small compared with the gradients of a larger model (unit/test_reducer_memory).
      const auto messages = report["memory"]["messages"].get<uint64_t>();
      self.expect(messages > 0 && messages <= uint64_t{1} << 20, cat(messages, " bytes for messages"));
      named -= messages;
      self.expect(named - stats.param_bytes <= stats.param_bytes / 50,
                  cat(named - stats.param_bytes, " bytes beside ", stats.param_bytes));
    }));
  }
}

}  // namespace unit_reducer_report
