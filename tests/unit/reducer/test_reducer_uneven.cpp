// Parameters without gradients and ranks without data: refusals by name, and the decisions of a step
// handshake. tests/property checks that results are correct in random programs.
#include <atomic>
#include <cmath>

#include "reducer/step/step_handshake.h"
#include "reducer_rig.h"

namespace unit_reducer_uneven {

using namespace weft;
using namespace weft::test;

namespace {

std::vector<TestParam> four_params() {
  return {{"a", {4}}, {"b", {3}}, {"c", {5}}, {"d", {}}};
}

HandshakeRecord record(uint32_t flags, double weight = 1, uint64_t step = 3, uint32_t micro_batches = 2) {
  return {step, weight, micro_batches, flags};
}

constexpr uint32_t kData = HandshakeRecord::kData;
constexpr uint32_t kJoined = HandshakeRecord::kJoined;
constexpr uint32_t kReplan = HandshakeRecord::kReplan;

}  // namespace

TEST_CASE("a step handshake divides by all ranks, by those with data, or by weights") {
  const std::vector<HandshakeRecord> records = {record(0, 9), record(kData, 1), record(kData, 3), record(0)};
  StepHandshake handshake;
  REQUIRE(decide_handshake(records, 1, {WEFT_DIVIDE_WORLD, false}, &handshake).ok());
  CHECK(handshake.outcome == StepOutcome::kReduce);
  CHECK(handshake.divisor == 8);
  CHECK(handshake.factor == 1);
  CHECK(handshake.active == 2);
  CHECK(handshake.first_active == 1);
  CHECK(handshake.last_active == 2);
  REQUIRE(decide_handshake(records, 1, {WEFT_DIVIDE_ACTIVE, false}, &handshake).ok());
  CHECK(handshake.divisor == 4);
  REQUIRE(decide_handshake(records, 2, {WEFT_DIVIDE_WEIGHTS, false}, &handshake).ok());
  CHECK(handshake.divisor == 8);
  CHECK(handshake.factor == 3);  // 3 of the weights' mean, which is 1
}

TEST_CASE("a step handshake without any data divides by the ranks") {
  StepHandshake handshake;
  for (const int32_t by : {WEFT_DIVIDE_WORLD, WEFT_DIVIDE_ACTIVE, WEFT_DIVIDE_WEIGHTS}) {
    REQUIRE(decide_handshake({record(0), record(0)}, 0, {by, false}, &handshake).ok());
    CHECK(handshake.divisor == 2);
    CHECK(handshake.factor == 1);
    CHECK(handshake.last_active == -1);
  }
}

TEST_CASE("a step ends when all ranks have joined, or at the first that has if so configured") {
  StepHandshake handshake;
  REQUIRE(decide_handshake({record(kJoined), record(kData)}, 0, {}, &handshake).ok());
  CHECK(handshake.outcome == StepOutcome::kReduce);
  CHECK(handshake.joined == std::vector<int>{0});
  REQUIRE(decide_handshake({record(kJoined), record(kData)}, 1, {WEFT_DIVIDE_WORLD, true}, &handshake).ok());
  CHECK(handshake.outcome == StepOutcome::kExhausted);
  REQUIRE(
      decide_handshake({record(kJoined), record(kReplan)}, 1, {WEFT_DIVIDE_WORLD, true}, &handshake).ok());
  CHECK(handshake.outcome == StepOutcome::kReplan);
  REQUIRE(
      decide_handshake({record(kJoined), record(kJoined)}, 1, {WEFT_DIVIDE_WORLD, true}, &handshake).ok());
  CHECK(handshake.outcome == StepOutcome::kOver);
}

TEST_CASE("a step handshake names a rank that differs, or what is invalid") {
  StepHandshake handshake;
  const auto refused = [&](const std::vector<HandshakeRecord>& records, const std::string& why) {
    const Status status = decide_handshake(records, 0, {}, &handshake);
    INFO(status.text());
    CHECK(status.code() == Code::kMismatch);
    CHECK(has(status.text(), why));
    CHECK(status.info().ranks == std::vector<int>{1});
  };
  refused({record(kData), record(kData, 1, 4)}, "rank 0 begins step 3, rank 1 step 4");
  refused({record(kData), record(kData, 1, 3, 5)}, "rank 0 divides by 2 micro-batches, rank 1 by 5");
  for (const double weight : {0.0, -1.0, HUGE_VAL, std::nan("")}) {
    refused({record(kData), record(kData, weight)},
            "rank 1 published an invalid record at begin: flags 1, weight ");
  }
  refused({record(kData), record(64)}, "invalid record at begin: flags 64");
  const uint32_t fixed = kData | HandshakeRecord::kFixed;
  refused({record(fixed), record(kData)},
          "rank 0 begins step 3 with WEFT_BEGIN_FIXED, rank 1 without WEFT_BEGIN_FIXED");
  refused({record(kData), record(fixed)},
          "rank 0 begins step 3 without WEFT_BEGIN_FIXED, rank 1 with WEFT_BEGIN_FIXED");
  refused({record(kData), record(kReplan)}, "rank 1 re-plans while others begin a step");
  refused({record(kReplan), record(kData)}, "rank 1 begins a step while others re-plan");
  refused({record(kData), record(HandshakeRecord::kGather)},
          "rank 1 gathers parameters while others begin a step");
  refused({record(HandshakeRecord::kGather), record(kReplan)},
          "rank 1 re-plans while others gather parameters");
  refused({record(kData), record(kData, 1, 3, 0)}, "micro_batches 0 (at least 1)");
  // Ranks without data do not know how the others divide.
  CHECK(decide_handshake({record(kData), record(kJoined, 1, 3, 5)}, 0, {}, &handshake).ok());
}

TEST_CASE("the absent set is fixed if every rank says so, which ranks without data cannot") {
  const uint32_t fixed = kData | HandshakeRecord::kFixed;
  StepHandshake handshake;
  REQUIRE(decide_handshake({record(fixed), record(fixed)}, 0, {}, &handshake).ok());
  CHECK(handshake.fixed);
  for (const uint32_t without :
       {HandshakeRecord::kZeros, HandshakeRecord::kZeros | kData, HandshakeRecord::kZeros | kJoined}) {
    REQUIRE(decide_handshake({record(without), record(fixed), record(fixed)}, 0, {}, &handshake).ok());
    CHECK(!handshake.fixed);
  }
}

TEST_CASE("weights whose sum overflows are an error that names the largest") {
  StepHandshake handshake;
  const HandshakeRules weighted{WEFT_DIVIDE_WEIGHTS, false};
  const std::vector<std::vector<double>> sums = {{1e308, 1.5e308}, {1, 1.5e308}, {1, 1.5e308, 1e308}};
  for (const std::vector<double>& weights : sums) {
    std::vector<HandshakeRecord> records;
    for (const double weight : weights) records.push_back(record(kData, weight));
    const Status status = decide_handshake(records, 0, weighted, &handshake);
    INFO(status.text());
    CHECK(status.code() == Code::kMismatch);
    CHECK(
        has(status.text(), "rank 1 begins the step with weight 1.5e+308: the sum of the weights overflows"));
    CHECK(status.info().ranks == std::vector<int>{1});
  }
  REQUIRE(decide_handshake({record(kData, 1e307), record(0, 1.5e308)}, 0, weighted, &handshake).ok());
  CHECK(handshake.factor == 2);
  REQUIRE(decide_handshake({record(kData, 1e308), record(kData, 1.5e308)}, 0, {}, &handshake).ok());
}

TEST_CASE("invalid absent parameters are refused by name, and the step continues") {
  const Model model(four_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_ABSENT}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    gradients.fill(0, self.rank);
    const auto refused = [&](const Status& status, Code code, const std::string& why) {
      self.expect(status.code() == code && has(status.text(), why), status.text() + ", not " + why);
    };
    const uint64_t list[] = {1, 2}, first[] = {0}, unknown[] = {7};
    refused(reducer->absent(list, 2), Code::kState, "'b'");
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->absent(list, 2), "absent");
    self.expect(reducer->absent(nullptr, 0), "nothing absent");
    refused(reducer->absent(nullptr, 1), Code::kArg, "params is NULL");
    refused(reducer->absent(unknown, 1), Code::kArg, "parameter 7 is unknown");
    refused(reducer->absent(list, 1), Code::kState, "'b') is absent already");
    refused(reducer->ready(2, gradients[2], nullptr), Code::kState, "'c') became ready, but is absent");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    refused(reducer->absent(first, 1), Code::kState, "'a') is ready already");
    refused(reducer->finish({}), Code::kState, "'d'");
    refused(reducer->result(0, gradients[0]), Code::kState, "there is no result");
    weft_finish_options rest = WEFT_FINISH_OPTIONS_INIT;
    rest.flags = WEFT_FINISH_REST_ABSENT;
    self.expect(reducer->finish(rest), "finish");
    refused(reducer->result(1, gradients[1]), Code::kState, "absent on every rank");
    refused(reducer->result(9, gradients[1]), Code::kArg, "unknown");
    refused(reducer->result(0, nullptr), Code::kArg, "NULL");
    refused(reducer->result(0, gradients[0] + 1), Code::kArg, "not aligned");
    weft_reducer_stats stats{};
    reducer->query(&stats);
    self.expect(stats.absent_params == 3 && stats.absent_everywhere == 3, "statistics");
  }));
}

TEST_CASE("calls that need another option are refused with the name of that option") {
  const Model model(four_params());
  check(run_threads(1, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    const auto refused = [&](const Status& status, const std::string& why) {
      self.expect(has(status.text(), why), status.text() + ", not " + why);
    };
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = WEFT_BEGIN_NO_DATA;
    refused(reducer->begin(&begin), "WEFT_REDUCER_UNEVEN");
    weft_join_result result{};
    refused(reducer->join({}, &result), "WEFT_REDUCER_UNEVEN");
    self.expect(reducer->begin(nullptr), "begin");
    const uint64_t param = 0;
    refused(reducer->absent(&param, 1), "WEFT_REDUCER_ABSENT");
    weft_finish_options rest = WEFT_FINISH_OPTIONS_INIT;
    rest.flags = WEFT_FINISH_REST_ABSENT;
    refused(reducer->finish(rest), "WEFT_REDUCER_ABSENT");
    Gradients gradients(model);
    gradients.fill(0, self.rank);
    self.expect(ready_all(*reducer, pointers(gradients), 1), "ready");
    self.expect(reducer->finish({}), "finish");
    for (const RigOptions& wrong : {RigOptions{.divide_by = WEFT_DIVIDE_ACTIVE}, RigOptions{.divide_by = 9},
                                    RigOptions{.flags = WEFT_REDUCER_STOP_WHEN_EXHAUSTED}}) {
      std::unique_ptr<Reducer> none;
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &none, wrong).code() == Code::kArg,
                  "options");
    }
  }));
}

TEST_CASE("buckets that are absent everywhere are not communicated if the set is fixed, and are counted") {
  const Model model(four_params());
  check(run_threads(3, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    const auto operations = [&] { return self.comm->operations(); };
    for (uint64_t step = 0; step < 3; step++) {
      gradients.fill(step, self.rank);
      const Gradients expected = reference(model, {step}, 3, 3);
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      begin.flags = WEFT_BEGIN_FIXED;
      const uint64_t before = operations();
      self.expect(reducer->begin(&begin), "begin");
      const uint64_t absent[] = {3, 1};
      self.expect(reducer->absent(absent, 2), "absent");
      self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
      self.expect(reducer->ready(2, gradients[2], nullptr), "ready");
      self.expect(reducer->finish({}), "finish");
      self.expect(operations() - before == 2, "two buckets travel");
      self.expect(gradients.memory()[0] == expected.memory()[0], "a");
      Gradients own(model);
      own.fill(step, self.rank);
      self.expect(gradients.memory()[1] == own.memory()[1], "b is as it was");
      weft_reducer_stats stats{};
      reducer->query(&stats);
      self.expect(stats.skipped_buckets == 2, "skipped");
    }
  }));
}

TEST_CASE("a bucket that is absent everywhere is sent if the set may change, with one small collective") {
  const Model model(four_params());
  for (const uint64_t flags : {uint64_t{0}, uint64_t{WEFT_BEGIN_FIXED}}) {
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      const RigOptions rig{.limits = {0}, .flags = WEFT_REDUCER_ABSENT};
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
      if (!reducer) return;
      Gradients gradients(model);
      for (uint64_t step = 0; step < 3; step++) {
        gradients.fill(step, self.rank);
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        begin.flags = flags;
        const uint64_t before = self.comm->operations();
        self.expect(reducer->begin(&begin), "begin");
        const uint64_t absent[] = {1};
        self.expect(reducer->absent(absent, 1), "absent");
        for (const size_t i : {0, 2, 3}) self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
        self.expect(reducer->finish({}), "finish");
        const uint64_t operations = self.comm->operations() - before;
        self.expect(operations == (flags == 0 ? 5 : 3), cat(operations, " operations"));
        weft_reducer_stats stats{};
        reducer->query(&stats);
        self.expect(stats.skipped_buckets == (flags == 0 ? 0 : 1), "skipped");
        weft_param_info info{};
        self.expect(reducer->param(1, &info), "param");
        self.expect(info.absent_everywhere != 0, "it is known that it is absent everywhere");
      }
    }));
  }
}

TEST_CASE("ranks with different fixed sets get an error and not a wrong result") {
  const Model model(four_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    gradients.fill(0, self.rank);
    weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
    begin.flags = WEFT_BEGIN_FIXED;
    self.expect(reducer->begin(&begin), "begin");
    const auto absent = static_cast<uint64_t>(self.rank);
    self.expect(reducer->absent(&absent, 1), "absent");
    for (uint64_t i = 0; i < model.size(); i++) {
      if (i != absent) static_cast<void>(reducer->ready(i, gradients[i], nullptr).ok());
    }
    const Status status = reducer->finish({});
    self.expect(status.code() == Code::kMismatch, status.text());
  }));
}

TEST_CASE("a fixed set works with ranks without data: buckets are sent, absent gradients do not change") {
  const Model model(four_params());
  for (const bool mapped : {false, true}) {
    for (const bool joins : {false, true}) {
      check(run_threads(3, [&](Rank& self) {
        std::unique_ptr<Reducer> reducer;
        self.expect(
            make_reducer(self.comm, model, allreduce_hook(), &reducer,
                         {.limits = {0}, .flags = WEFT_REDUCER_UNEVEN | (mapped ? WEFT_REDUCER_ABSENT : 0)}),
            "create");
        if (!reducer) return;
        Gradients gradients(model);
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        begin.flags = WEFT_BEGIN_FIXED;
        const auto fixed_step = [&](uint64_t seed) {
          gradients.fill(seed, self.rank);
          self.expect(reducer->begin(&begin), "begin");
          const uint64_t absent[] = {3, 1};
          self.expect(reducer->absent(absent, 2), "absent");
          self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
          self.expect(reducer->ready(2, gradients[2], nullptr), "ready");
          self.expect(reducer->finish({}), "finish");
          weft_reducer_stats stats{};
          reducer->query(&stats);
          return stats.skipped_buckets;
        };
        Gradients own(model);
        own.fill(1, self.rank);
        if (self.rank < 2) {
          self.expect(fixed_step(1) == 0, "all buckets travel where a rank has no data");
          const Gradients expected = reference(model, {1}, 2, 3);
          self.expect(gradients.memory()[0] == expected.memory()[0], "a");
          self.expect(gradients.memory()[2] == expected.memory()[2], "c");
          self.expect(gradients.memory()[1] == own.memory()[1], "b is as it was");
          self.expect(gradients.memory()[3] == own.memory()[3], "d is as it was");
          weft_param_info info{};
          self.expect(reducer->param(1, &info).ok() && info.absent_everywhere == 1, "absent everywhere");
          if (joins) {
            weft_join_result result{};
            self.expect(reducer->join({}, &result), "join");
          }
        } else if (joins) {
          weft_join_result result{};
          self.expect(reducer->join({}, &result), "join");
          self.expect(result.steps == 1, "of one step");
        } else {
          const Gradients expected = reference(model, {1}, 2, 3);
          gradients.fill(1, self.rank);
          std::vector<void*> places;
          for (size_t i = 0; i < model.size(); i++) places.push_back(gradients[i]);
          weft_begin_options none = WEFT_BEGIN_OPTIONS_INIT;
          none.flags = WEFT_BEGIN_NO_DATA;
          none.gradients = places.data();
          self.expect(reducer->begin(&none), "begin without data");
          self.expect(reducer->finish({}), "finish without data");
          self.expect(gradients.memory()[0] == expected.memory()[0], "a arrives");
          const Bytes zeros(gradients.memory()[1].size());
          self.expect(gradients.memory()[1] == (mapped ? own.memory()[1] : zeros), "b");
        }
        self.expect(fixed_step(4) == 2, "where all have data two buckets do not travel");
      }));
    }
  }
}

TEST_CASE("a re-plan that changes nothing keeps the last step's results, also with a joined rank") {
  const Model model(four_params());
  for (const bool joins : {false, true}) {
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                               {.limits = {0}, .flags = WEFT_REDUCER_UNEVEN | WEFT_REDUCER_ABSENT}),
                  "create");
      if (!reducer) return;
      weft_join_result result{};
      if (joins && self.rank == 1) {
        self.expect(reducer->join({}, &result), "join");
        return;
      }
      Gradients gradients(model);
      gradients.fill(1, self.rank);
      self.expect(reducer->begin(nullptr), "begin");
      const uint64_t absent = 1;
      self.expect(reducer->absent(&absent, 1), "absent");
      for (const uint64_t i : {3, 2, 0}) self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
      self.expect(reducer->finish({}), "finish");
      weft_bucket_info before{}, after{};
      self.expect(reducer->bucket(0, &before, nullptr, 0), "bucket");
      std::vector<uint64_t> order, sizes(model.size(), 1);
      for (uint32_t b = 0; b < reducer->bucket_count(); b++) {
        weft_bucket_info info{};
        uint64_t param = 0;
        self.expect(reducer->bucket(b, &info, &param, 1), "bucket");
        order.push_back(param);
      }
      const weft_plan same{sizeof(weft_plan), sizes.size(), sizes.data(), order.data()};
      weft_replan_options options = WEFT_REPLAN_OPTIONS_INIT;
      options.plan = &same;
      self.expect(reducer->replan(options), "replan");
      weft_reducer_stats stats{};
      reducer->query(&stats);
      self.expect(stats.plan_generation == 0, "nothing has changed");
      for (uint64_t i = 0; i < model.size(); i++)
        self.expect(reducer->wait_param(i, WEFT_TIMEOUT_POLL), "its result is there");
      std::vector<std::byte> copy(gradients.memory()[0].size());
      self.expect(reducer->result(0, copy.data()), "result");
      self.expect(copy == gradients.memory()[0], "the same result");
      weft_param_info info{};
      self.expect(reducer->param(1, &info).ok() && info.absent == 1 && info.absent_everywhere == 1, "absent");
      self.expect(has(reducer->result(1, copy.data()).text(), "absent on every rank"), "no result");
      self.expect(reducer->bucket(0, &after, nullptr, 0), "bucket");
      self.expect(
          before.done_ns > 0 && after.done_ns == before.done_ns && after.launch_ns == before.launch_ns,
          "times of the last step");
      if (joins) self.expect(reducer->join({}, &result), "join");
    }));
  }
}

TEST_CASE("gradients accumulated when all ranks have joined are no part of the next epoch's first sum") {
  const Model model(four_params());
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                               {.mode = mode, .flags = WEFT_REDUCER_UNEVEN | WEFT_REDUCER_ABSENT}),
                  "create");
      if (!reducer) return;
      Gradients gradients(model);
      std::vector<std::byte*> places = pointers(gradients);
      for (uint64_t i = 0; mode == WEFT_GRADIENT_VIEW && i < model.size(); i++) {
        void* view = nullptr;
        self.expect(reducer->grad_view(i, &view), "view");
        places[i] = static_cast<std::byte*>(view);
      }
      const auto step = [&](uint64_t flags, uint64_t seed, uint64_t absent) {
        weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
        begin.flags = flags;
        self.expect(reducer->begin(&begin), "begin");
        for (uint64_t i = 0; i < model.size(); i++) {
          if (i == absent) {
            self.expect(reducer->absent(&i, 1), "absent");
          } else {
            gradients.fill(i, seed, self.rank, places[i]);
            self.expect(reducer->ready(i, places[i], nullptr), "ready");
          }
        }
        self.expect(reducer->finish({}), "finish");
      };
      step(0, 1, 99);
      if (self.rank == 0) step(WEFT_BEGIN_LOCAL, 2, 99);
      weft_join_result result{};
      self.expect(reducer->join({}, &result), "join");
      step(0, 7, static_cast<uint64_t>(self.rank));
      const Gradients expected = reference(model, {7}, 2, 2);
      for (uint64_t i = 2; i < model.size(); i++) {
        self.expect(std::equal(expected.memory()[i].begin(), expected.memory()[i].end(), places[i]),
                    cat(model[i].name, " is of this step alone"));
      }
      // Rank 0's accumulated 'a' is not part of a sum in which 'a' is absent here.
      weft_param_info info{};
      if (self.rank == 0) self.expect(reducer->param(0, &info).ok() && info.absent == 1, "a is absent here");
    }));
  }
}

TEST_CASE("gradients accumulated for a step that was not reduced are dropped with it") {
  const Model model(four_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                             {.flags = WEFT_REDUCER_UNEVEN | WEFT_REDUCER_STOP_WHEN_EXHAUSTED}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    weft_begin_options local = WEFT_BEGIN_OPTIONS_INIT;
    local.flags = WEFT_BEGIN_LOCAL;
    const auto step = [&](const weft_begin_options* begin, uint64_t number) {
      gradients.fill(number, self.rank);
      self.expect(reducer->begin(begin), "begin");
      self.expect(ready_all(*reducer, pointers(gradients), number), "ready");
      return reducer->finish({});
    };
    if (self.rank == 1) {
      weft_join_result result{};
      self.expect(reducer->join({}, &result).code() == Code::kState, "join");
    } else {
      self.expect(step(&local, 1), "a local step");
      self.expect(step(nullptr, 2).code() == Code::kState, "not reduced");
    }
    self.expect(step(nullptr, 7), "the next epoch's first step");
    const Gradients expected = reference(model, {7}, 2, 2);
    self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "result");
  }));
}

TEST_CASE("the first rank without data stops all on request, and the communicator stays usable") {
  const Model model(four_params());
  check(run_threads(3, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                             {.flags = WEFT_REDUCER_UNEVEN | WEFT_REDUCER_STOP_WHEN_EXHAUSTED}),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < 3; step++) {
      Status status;
      if (step == 2 && self.rank == 1) {
        weft_join_result result{};
        status = reducer->join({}, &result);
      } else {
        gradients.fill(step, self.rank);
        self.expect(reducer->begin(nullptr), "begin");
        self.expect(ready_all(*reducer, pointers(gradients), step), "ready");
        status = reducer->finish({});
      }
      if (step < 2) {
        self.expect(status, "finish");
      } else {
        self.expect(status.code() == Code::kState && has(status.text(), "ranks [1] have no more data"),
                    status.text());
      }
    }
    CollectiveArgs barrier;
    self.expect(self.run(barrier), "barrier");
    // This step reduced nothing, and the next one does.
    Gradients own(model);
    own.fill(2, self.rank);
    if (self.rank != 1) self.expect(gradients.memory() == own.memory(), "gradients are as they were");
    gradients.fill(7, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(ready_all(*reducer, pointers(gradients), 7), "ready");
    self.expect(reducer->finish({}), "finish");
    const Gradients expected = reference(model, {7}, 3, 3);
    self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "result");
  }));
}

TEST_CASE("join ends at its deadline, and names the rank that begins no step") {
  const Model model(four_params());
  std::atomic<bool> over{false};
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_UNEVEN}),
                "create");
    if (!reducer) return;
    Context& context = self.comm->context();
    if (self.rank == 0) {
      weft_join_options options = WEFT_JOIN_OPTIONS_INIT;
      options.timeout_ms = 200;
      weft_join_result result{};
      const Status late = reducer->join(options, &result);
      self.expect(late.code() == Code::kTimeout && late.text().find("rank 1") != std::string::npos,
                  late.text());
      over = true;
      return;
    }
    self.expect(
        context.engine().wait([&] { return over.load(); }, Deadline::after(context.clock(), 60'000, 0)),
        "join");
    self.expect(!reducer->begin(nullptr).ok(), "the communicator has failed");
  }));
}

}  // namespace unit_reducer_uneven
