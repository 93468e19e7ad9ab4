// Parameters that become ready several times in a step, and waits for one parameter's result.
#include "reducer_rig.h"

namespace unit_reducer_uses {

using namespace weft;
using namespace weft::test;

namespace {

std::vector<TestParam> three_params() {
  return {{"tied", {6}}, {"once", {3}}, {"last", {5}}};
}

void refused(Rank& self, const Status& status, Code code, const std::string& why) {
  self.expect(status.code() == code && has(status.text(), why), status.text() + ", not " + why);
}

// Creates a reducer with `uses` for the first parameter.
Status make(Rank& self, const Model& model, uint32_t uses, uint64_t flags, std::unique_ptr<Reducer>* reducer,
            int32_t mode = WEFT_GRADIENT_COPY, weft_planner replan = WEFT_PLANNER_DEFAULT) {
  std::vector<weft_param> params = model.c();
  params[0].uses = uses;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params.data();
  options.param_count = params.size();
  const uint64_t limit = 0;
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  options.mode = mode;
  options.accumulation = accumulation_in(mode);
  options.flags = flags;
  options.replan = replan;
  return Reducer::create(self.comm, options, allreduce_hook(), reducer);
}

}  // namespace

TEST_CASE("a parameter that is declared to be used three times is complete at its third call of ready") {
  const Model model(three_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self, model, 3, 0, &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < 3; step++) {
      self.expect(reducer->begin(nullptr), "begin");
      for (int use = 0; use < 2; use++) {
        gradients.fill(0, 99 + step, self.rank);  // not complete yet
        self.expect(reducer->ready(0, gradients[0], nullptr), "an earlier use");
      }
      gradients.fill(step, self.rank);
      self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
      self.expect(reducer->ready(2, gradients[2], nullptr), "ready");
      refused(self, reducer->finish({}), Code::kState,
              "'tied' ('tied' became ready 2 times, expected 3 (weft_param.uses))");
      self.expect(reducer->ready(0, gradients[0], nullptr), "the last use");
      refused(self, reducer->ready(0, gradients[0], nullptr), Code::kState,
              "('tied') became ready too often: 4 times, expected 3 (weft_param.uses)");
      refused(self, reducer->ready(1, gradients[1], nullptr), Code::kState, "'once') became ready too often");
      self.expect(reducer->finish({}), "finish");
      const Gradients expected = reference(model, {step}, 2, 2);
      self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "result");
    }
  }));
}

TEST_CASE("ranks that declare different uses get an error") {
  const Model model(three_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    refused(self, make(self, model, 2 + static_cast<uint32_t>(self.rank), 0, &reducer), Code::kMismatch,
            "weft_param.uses differs between ranks 1 and 0");
  }));
}

TEST_CASE("a static pattern is learned in the first step, local or not, and may differ between ranks") {
  const Model model(three_params());
  for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
    for (const bool local_first : {false, true}) {
      check(run_threads(2, [&](Rank& self) {
        std::unique_ptr<Reducer> reducer;
        self.expect(make(self, model, 1, WEFT_REDUCER_STATIC | WEFT_REDUCER_ABSENT, &reducer, mode),
                    "create");
        if (!reducer) return;
        Gradients gradients(model);
        const int uses = 2 + self.rank;
        for (uint64_t step = 0; step < 4; step++) {
          weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
          const bool local = local_first && step == 0;
          if (local) begin.flags = WEFT_BEGIN_LOCAL;
          self.expect(reducer->begin(&begin), "begin");
          for (size_t i = 0; i < 2; i++) {
            void* at = gradients[i];
            if (mode == WEFT_GRADIENT_VIEW) self.expect(reducer->grad_view(i, &at), "view");
            for (int use = 0; use < (i == 0 ? uses : 1); use++) {
              gradients.fill(i, local ? 0 : step, self.rank, static_cast<std::byte*>(at));
              self.expect(reducer->ready(i, at, nullptr), "ready");
            }
          }
          if (step == 1 && !local_first) {
            const auto at = [&](size_t i) { return mode == WEFT_GRADIENT_VIEW ? nullptr : gradients[i]; };
            refused(self, reducer->ready(0, at(0), nullptr), Code::kState, "'tied') became ready too often");
            refused(self, reducer->ready(2, at(2), nullptr), Code::kState,
                    "'last') became ready too often: 1 time, expected 0 as in the first step");
          }
          self.expect(reducer->finish({}), "finish");
          if (local_first && step < 2) continue;  // the sum of two micro-batches
          const Gradients expected = reference(model, {step}, 2, 2);
          for (size_t i = 0; i < 2; i++) {
            void* at = gradients[i];
            if (mode == WEFT_GRADIENT_VIEW) self.expect(reducer->grad_view(i, &at), "view");
            self.expect(std::memcmp(at, expected.memory()[i].data(), expected.memory()[i].size()) == 0,
                        "result");
          }
          weft_param_info info{};
          self.expect(reducer->param(2, &info), "param");
          self.expect(info.absent_everywhere == 1, "absent");
        }
      }));
    }
  }
}

TEST_CASE("a parameter with too few uses is missing, also if the rest is absent") {
  const Model model(three_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self, model, 2, WEFT_REDUCER_ABSENT, &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    gradients.fill(1, self.rank);
    const weft_finish_options rest{sizeof rest, WEFT_FINISH_REST_ABSENT, nullptr, 0};
    const uint64_t tied = 0;
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->ready(0, gradients[0], nullptr), "an earlier use");
    refused(self, reducer->absent(&tied, 1), Code::kState,
            "in use in this step already, and became ready 1 time, expected 2 (weft_param.uses)");
    refused(self, reducer->finish(rest), Code::kState,
            "'tied' ('tied' became ready 1 time, expected 2 (weft_param.uses))");
    self.expect(reducer->ready(0, gradients[0], nullptr), "the last use");
    self.expect(reducer->finish(rest), "finish");
    const Gradients expected = reference(model, {1}, 2, 2);
    self.expect(gradients.memory()[0] == expected.memory()[0], "result");
  }));
}

TEST_CASE("a rank without data in the first step learns the uses of parameters in its next one") {
  const Model model(three_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self, model, 1, WEFT_REDUCER_STATIC | WEFT_REDUCER_UNEVEN, &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < 3; step++) {
      weft_begin_options begin = WEFT_BEGIN_OPTIONS_INIT;
      const bool data = step > 0 || self.rank == 0;
      if (!data) begin.flags = WEFT_BEGIN_NO_DATA;
      self.expect(reducer->begin(&begin), "begin");
      gradients.fill(step, self.rank);
      for (size_t i = 0; data && i < 3; i++) {
        for (int use = 0; use < (i == 0 ? 2 : 1); use++)
          self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
      }
      if (step == 2)
        refused(self, reducer->ready(0, gradients[0], nullptr), Code::kState,
                "expected 2 as in the first step");
      self.expect(reducer->finish({}), "finish");
    }
  }));
}

TEST_CASE("the order of readiness is recorded once the pattern of uses is known") {
  const Model model(three_params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self, model, 1, WEFT_REDUCER_STATIC, &reducer, WEFT_GRADIENT_COPY, WEFT_PLANNER_LIMITS),
                "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < 4; step++) {
      self.expect(reducer->begin(nullptr), "begin");
      // By its third step the reducer has planned by the order of the second.
      const std::vector<uint64_t> planned =
          step < 2 ? std::vector<uint64_t>{2, 1, 0} : std::vector<uint64_t>{1, 2, 0};
      for (uint32_t b = 0; b < 3; b++) {
        weft_bucket_info info{};
        uint64_t param = 9;
        self.expect(reducer->bucket(b, &info, &param, 1), "bucket");
        self.expect(param == planned[b], cat("bucket ", b, " of step ", step, " has parameter ", param));
      }
      gradients.fill(step, self.rank);
      for (const size_t i : {1, 2, 0}) self.expect(reducer->ready(i, gradients[i], nullptr), "ready");
      self.expect(reducer->finish({}), "finish");
      const Gradients expected = reference(model, {step}, 2, 2);
      self.expect(differs(model, gradients.memory(), expected.memory()).empty(), "result");
    }
  }));
}

TEST_CASE("a wait for one parameter ends with its bucket, and reports its failure") {
  const Model model(three_params());
  RankBarrier begun(2);
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self, model, 1, 0, &reducer), "create");
    if (!reducer) return;
    refused(self, reducer->wait_param(0, 0), Code::kState, "no synchronised step");
    refused(self, reducer->wait_param(9, 0), Code::kArg, "unknown");
    Gradients gradients(model);
    gradients.fill(5, self.rank);
    const Gradients expected = reference(model, {5}, 2, 2);
    self.expect(reducer->begin(nullptr), "begin");
    // The plan launches the last parameter first.
    self.expect(reducer->ready(2, gradients[2], nullptr), "ready");
    self.expect(reducer->wait_param(0, WEFT_TIMEOUT_POLL).code() == Code::kNotDone, "no result yet");
    self.expect(reducer->wait_param(2, 0), "wait");
    self.expect(gradients.memory()[2] == expected.memory()[2], "result, in the middle of the step");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    self.expect(reducer->wait_param(0, 0), "after the step");
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(begun.arrive(self), "meeting");
    self.comm->fail(Status::error(Code::kCancelled, "enough"));
    const Status status = reducer->wait_param(1, 0);
    self.expect(!status.ok() && status.code() != Code::kNotDone, status.text());
  }));
}

}  // namespace unit_reducer_uses
