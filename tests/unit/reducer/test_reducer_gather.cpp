// Sharded reducers gather the parameters that their owners have updated, when the program requests it or
// waits for the first of them.
#include <latch>
#include <thread>

#include "reducer/bucket/layout.h"
#include "reducer/manifest/manifest.h"
#include "sharded_rig.h"
#include "shm/backend.h"

namespace unit_reducer_gather {

using namespace weft;
using namespace weft::test;

namespace {

// A rank's parameter values, and a model that points to them.
class Values {
 public:
  Values(const Model& model, bool all = true) : memory(model), params(model.c()) {
    for (size_t i = 0; i < params.size(); i++) {
      if (all || i + 1 < params.size()) params[i].parameter = memory[i];
    }
  }
  // Gives the elements that `rank` owns their values of the round, and all others NaN or garbage.
  void update(Rank& self, const Model& model, Reducer& reducer, uint64_t round) {
    std::vector<Layout> layouts;
    Manifest manifest;
    self.expect(make_manifest(params.data(), params.size(), sizeof(weft_param), &manifest), "manifest");
    for (const Param& p : manifest.params) layouts.emplace_back(p);
    for (const weft_slice& slice : slices_of(self, reducer, self.rank)) {
      const uint32_t size = dtype_size(model[slice.param].dtype);
      layouts[slice.param].for_each_run(slice.offset, slice.count, [&](uint64_t at, uint64_t k, uint64_t n) {
        for (uint64_t e = 0; e < n; e++) {
          store_as(model[slice.param].dtype, value(round, 0, slice.param, k + e),
                   memory[slice.param] + (at + e) * size);
        }
      });
    }
    wanted = memory.memory();
    for (size_t i = 0; i < model.size(); i++) {
      const uint32_t size = dtype_size(model[i].dtype);
      layouts[i].for_each_run(0, model.count(i), [&](uint64_t at, uint64_t k, uint64_t n) {
        for (uint64_t e = 0; e < n; e++)
          store_as(model[i].dtype, value(round, 0, i, k + e), wanted[i].data() + (at + e) * size);
      });
    }
  }

  Gradients memory;
  std::vector<weft_param> params;
  std::vector<Bytes> wanted;  // after the gather, gaps unchanged
};

Status make_with_values(Rank& self, const std::vector<weft_param>& params, uint64_t flags, uint64_t limit,
                        std::unique_ptr<Reducer>* reducer) {
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params.data();
  options.param_count = params.size();
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  options.flags = flags | WEFT_REDUCER_KEEP_VALUES;
  return Reducer::create(self.comm, options, allreduce_hook(), reducer);
}

Status step_of(Reducer& reducer, Gradients& gradients) {
  WEFT_TRY(reducer.begin(nullptr));
  for (size_t i = 0; i < gradients.memory().size(); i++) WEFT_TRY(reducer.ready(i, gradients[i], nullptr));
  return reducer.finish({});
}

}  // namespace

TEST_CASE("gathered parameters have their owners' values on every rank, over loopback and shm") {
  const Model model(params());
  for (const bool over_shm : {false, true}) {
    for (const uint64_t flags : {WEFT_REDUCER_SHARDED, kWhole}) {
      for (const uint64_t limit : {uint64_t{0}, uint64_t{1000}, uint64_t{1} << 30}) {
        RanksOptions options;
        if (over_shm) options.backend = &shm::backend();
        check(run_threads(
            3,
            [&](Rank& self) {
              Values values(model);
              std::unique_ptr<Reducer> reducer;
              self.expect(make_with_values(self, values.params, flags, limit, &reducer), "create");
              if (!reducer) return;
              Gradients gradients(model);
              for (uint64_t round = 1; round < 4; round++) {
                gradients.fill(round, self.rank);
                self.expect(step_of(*reducer, gradients), "step");
                values.update(self, model, *reducer, round);
                self.expect(reducer->gather_params({}), "gather");
                for (size_t i = 0; round != 2 && i < model.size(); i++) {
                  self.expect(reducer->wait_param(i, 0), "wait_param");
                  self.expect(values.memory.memory()[i] == values.wanted[i], cat("value of ", model[i].name));
                }
                if (round != 2) continue;
                self.expect(step_of(*reducer, gradients), "a step that waits for the values");
                self.expect(values.memory.memory() == values.wanted, "values");
              }
            },
            options));
      }
    }
  }
}

TEST_CASE("after a step the first wait for a value starts the gather, on any thread") {
  const Model model(params());
  for (const bool over_shm : {false, true}) {
    for (const uint64_t uneven : {uint64_t{0}, uint64_t{WEFT_REDUCER_UNEVEN}}) {
      RanksOptions options;
      if (over_shm) options.backend = &shm::backend();
      check(run_threads(
          3,
          [&](Rank& self) {
            Values values(model);
            std::unique_ptr<Reducer> reducer;
            self.expect(make_with_values(self, values.params, kWhole | uneven, 1000, &reducer), "create");
            if (!reducer) return;
            Gradients gradients(model);
            const int last = uneven != 0 ? self.rank + 1 : 4;  // rounds
            for (int round = 1; round <= last; round++) {
              gradients.fill(static_cast<uint64_t>(round), self.rank);
              self.expect(step_of(*reducer, gradients), "step");
              values.update(self, model, *reducer, 5);
              std::vector<Status> waited(model.size());
              const auto wait = [&](size_t from) {
                for (size_t i = from; i < model.size(); i += 2) waited[i] = reducer->wait_param(i, 0);
              };
              std::thread other(wait, 1);
              wait(0);
              other.join();
              for (const Status& status : waited) self.expect(status, "wait_param");
              self.expect(values.memory.memory() == values.wanted, "the values are there");
              // There is one gather a step.
              values.memory.fill(9, self.rank);
              self.expect(reducer->wait_param(0, 0), "once more");
              self.expect(values.memory.memory() != values.wanted, "nothing moves again");
              values.update(self, model, *reducer, 5);  // ranks that have joined still own their slices
            }
            weft_join_result joined{};
            if (uneven != 0) self.expect(reducer->join({}, &joined), "join");
          },
          options));
    }
  }
}

TEST_CASE("a wait inside a step, or without values, waits for a gradient and gathers nothing") {
  const Model model(params());
  check(run_threads(2, [&](Rank& self) {
    Values values(model);
    std::unique_ptr<Reducer> reducer, without;
    self.expect(make_with_values(self, values.params, kWhole, 1000, &reducer), "create");
    self.expect(make_with_values(self, model.c(), WEFT_REDUCER_SHARDED, 1000, &without), "create");
    if (!reducer || !without) return;
    Gradients gradients(model);
    values.memory.fill(3, self.rank);
    const std::vector<Bytes> before = values.memory.memory();
    for (int round = 0; round < 2; round++) {
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(ready_all(*reducer, pointers(gradients), 1), "ready");
      for (size_t i = 0; i < model.size(); i++) self.expect(reducer->wait_param(i, 0), "its result");
      self.expect(reducer->finish({}), "finish");
    }
    self.expect(reducer->check().code() == Code::kMismatch, "ranks still have values of their own");
    self.expect(values.memory.memory() == before, "as they were");
    self.expect(step_of(*without, gradients), "step");
    // Rank 0 calls it alone: it is no collective call.
    if (self.rank == 0) self.expect(without->wait_param(0, 0), "its result");
    self.expect(step_of(*without, gradients), "the next step");
  }));
}

TEST_CASE("a wait for a value that a rank does not have names that rank, and the next step can be made") {
  const Model model(params());
  check(run_threads(2, [&](Rank& self) {
    Values values(model, self.rank == 0);
    std::unique_ptr<Reducer> reducer;
    self.expect(make_with_values(self, values.params, WEFT_REDUCER_SHARDED, 500, &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    self.expect(step_of(*reducer, gradients), "step");
    const Status waited = reducer->wait_param(0, 0);
    self.expect(waited.code() == Code::kMismatch && has(waited.text(), "rank 1 cannot gather parameters"),
                waited.text());
    self.expect(has(waited.text(), "'large') has no value"), waited.text());
    const Status begun = reducer->begin(nullptr);
    self.expect(begun.code() == Code::kMismatch && has(begun.text(), "rank 1 cannot gather"), begun.text());
    self.expect(step_of(*reducer, gradients), "a step afterwards");
  }));
}

TEST_CASE("ranks that have joined take part in gathers") {
  const Model model(params());
  check(run_threads(3, [&](Rank& self) {
    Values values(model);
    std::unique_ptr<Reducer> reducer;
    const uint64_t flags = WEFT_REDUCER_SHARDED | WEFT_REDUCER_UNEVEN;
    self.expect(make_with_values(self, values.params, flags, 500, &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    values.update(self, model, *reducer, 7);
    for (int step = 0; step < self.rank; step++) {
      self.expect(step_of(*reducer, gradients), "step");
      self.expect(reducer->gather_params({}), "gather");
    }
    weft_join_result joined{};
    self.expect(reducer->join({}, &joined), "join");
    self.expect(joined.steps == 2 - static_cast<uint64_t>(self.rank), cat("joined ", joined.steps, " steps"));
    self.expect(values.memory.memory() == values.wanted, "values");
  }));
}

TEST_CASE("a refused gather is reported on all ranks by their next call, which then can be repeated") {
  const Model model(params());
  enum class Next { kBegin, kJoin, kBroadcast, kCheck, kReplan, kGather, kDestroy };
  const auto make = [](Reducer& reducer, Next next) -> Status {
    weft_join_result joined{};
    switch (next) {
      case Next::kBegin:
        return reducer.begin(nullptr);
      case Next::kJoin:
        return reducer.join({}, &joined);
      case Next::kBroadcast:
        return reducer.broadcast(WEFT_BROADCAST_OPTIONS_INIT);
      case Next::kCheck:
        return reducer.check();
      case Next::kReplan:
        return reducer.replan(WEFT_REPLAN_OPTIONS_INIT);
      case Next::kGather:
        return reducer.gather_params({});
      case Next::kDestroy:
        break;
    }
    return {};
  };
  for (const bool without : {false, true}) {  // either a value is missing, or the call is invalid
    for (const Next next : {Next::kBegin, Next::kJoin, Next::kBroadcast, Next::kCheck, Next::kReplan,
                            Next::kGather, Next::kDestroy}) {
      INFO("next call " << static_cast<int>(next) << (without ? ", without a value" : ", a wrong call"));
      check(run_threads(2, [&](Rank& self) {
        Values values(model, self.rank == 0 || !without);
        std::unique_ptr<Reducer> reducer;
        const uint64_t flags = WEFT_REDUCER_SHARDED | (next == Next::kJoin ? WEFT_REDUCER_UNEVEN : 0);
        self.expect(make_with_values(self, values.params, flags, 500, &reducer), "create");
        if (!reducer) return;
        Gradients gradients(model);
        weft_gather_options options = WEFT_GATHER_OPTIONS_INIT;
        if (self.rank == 1 && !without) options.flags = 1;
        const Status gathered = reducer->gather_params(options);
        if (self.rank == 1) {
          self.expect(gathered.code() == Code::kArg, gathered.text());
          self.expect(has(gathered.text(), without ? "'large') has no value" : "unknown flags"),
                      gathered.text());
        } else {
          self.expect(gathered, "gather");
          const Status waited = reducer->wait_param(0, 0);
          self.expect(has(waited.text(), "rank 1 cannot gather parameters"), waited.text());
        }
        if (next == Next::kDestroy) return;
        const Status told = make(*reducer, next);
        self.expect(told.code() == Code::kMismatch && has(told.text(), "rank 1 cannot gather parameters"),
                    told.text());
        self.expect(step_of(*reducer, gradients), "a step afterwards");
        if (next == Next::kBegin || without) return;
        self.expect(make(*reducer, next), "the call that was refused");
      }));
    }
  }
}

TEST_CASE("a rank that waits for a value while another one begins the next step is an error on both") {
  const Model model(params());
  for (const bool over_shm : {false, true}) {
    for (const uint64_t uneven : {uint64_t{0}, uint64_t{WEFT_REDUCER_UNEVEN}}) {
      RanksOptions options;
      if (over_shm) options.backend = &shm::backend();
      std::latch stepped(3);  // an earlier failure would fail the first step
      check(run_threads(
          3,
          [&](Rank& self) {
            Values values(model);
            std::unique_ptr<Reducer> reducer;
            self.expect(make_with_values(self, values.params, kWhole | uneven, 1000, &reducer), "create");
            Gradients gradients(model);
            gradients.fill(1, self.rank);
            if (reducer) self.expect(step_of(*reducer, gradients), "step");
            stepped.arrive_and_wait();
            if (!reducer) return;
            values.update(self, model, *reducer, 1);
            const std::vector<Bytes> before = values.memory.memory();
            const Status differs =
                self.rank == 1 ? reducer->wait_param(0, 30'000) : step_of(*reducer, gradients);
            self.expect(differs.code() == Code::kMismatch,
                        cat(code_name(differs.code()), " ", differs.text()));
            self.expect(has(differs.text(), "rank 1 ") && has(differs.text(), "gather") &&
                            has(differs.text(), "step"),
                        differs.text());
            self.expect(values.memory.memory() == before, "values are touched");
          },
          options));
    }
  }
}

TEST_CASE("a rank that has joined stays inside join when a gather is refused") {
  const Model model(params());
  check(run_threads(2, [&](Rank& self) {
    Values values(model);
    std::unique_ptr<Reducer> reducer;
    const uint64_t flags = WEFT_REDUCER_SHARDED | WEFT_REDUCER_UNEVEN;
    self.expect(make_with_values(self, values.params, flags, 500, &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    if (self.rank == 0) {
      weft_gather_options wrong = WEFT_GATHER_OPTIONS_INIT;
      wrong.flags = 1;
      self.expect(reducer->gather_params(wrong).code() == Code::kArg, "gather");
      self.expect(reducer->begin(nullptr).code() == Code::kMismatch, "begin");
      self.expect(step_of(*reducer, gradients), "a step afterwards");
    }
    weft_join_result joined{};
    self.expect(reducer->join({}, &joined), "join");
    self.expect(joined.steps == static_cast<uint64_t>(self.rank), "joined steps");
  }));
}

TEST_CASE("parameters are gathered between steps of sharded reducers only") {
  const Model model({{"a", {400}}});
  check(run_threads(2, [&](Rank& self) {
    Values values(model);
    std::unique_ptr<Reducer> reducer, plain;
    self.expect(make_with_values(self, values.params, 0, 500, &plain), "create");
    self.expect(make_with_values(self, values.params, WEFT_REDUCER_SHARDED, 500, &reducer), "create");
    if (!reducer || !plain) return;
    const auto refused = [&](const Status& status, const std::string& why) {
      self.expect(status.code() == Code::kState && has(status.text(), why), status.text() + ", not " + why);
    };
    refused(plain->gather_params({}), "WEFT_REDUCER_SHARDED");
    Gradients gradients(model);
    self.expect(reducer->begin(nullptr), "begin");
    refused(reducer->gather_params({}), "gather_params inside step 0");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    self.expect(reducer->gather_params({}), "gather, and destroyed at once");
  }));
}

TEST_CASE("a gather ends on all ranks when one of them aborts, and no value changes afterwards") {
  const Model model(params());
  for (const bool over_shm : {false, true}) {
    RanksOptions options;
    if (over_shm) options.backend = &shm::backend();
    RankBarrier started(3);
    check(run_threads(
        3,
        [&](Rank& self) {
          Values values(model);
          std::unique_ptr<Reducer> reducer;
          self.expect(make_with_values(self, values.params, kWhole, 500, &reducer), "create");
          if (!reducer) return;
          if (self.rank != 1) self.expect(reducer->gather_params({}), "gather");
          self.expect(started.arrive(self), "meeting");
          if (self.rank == 1) {
            self.comm->fail(Status::error(Code::kAborted, "no more"));
            return;
          }
          const Status waited = reducer->wait_param(0, 10'000);
          self.expect(waited.code() == Code::kAborted, waited.text());
          self.expect(reducer->begin(nullptr).code() == Code::kAborted, "begin");
          reducer.reset();
        },
        options));
  }
}

}  // namespace unit_reducer_gather
