// When a step counts as finished on all ranks, and which gradients are retained until then.
#include "bootstrap.h"
#include "reducer_rig.h"
#include "registry.h"

namespace unit_reducer_commit {

using namespace weft;
using namespace weft::test;

namespace {

uint64_t last_committed(const Reducer& reducer) {
  weft_verdict verdict{};
  reducer.verdict(&verdict);
  return verdict.last_committed_step;
}

}  // namespace

TEST_CASE("a step is committed by the collectives of the next one, or by a finish that waits for it") {
  const Model model({{"one", {5}}});
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    for (uint64_t step = 0; step < 4; step++) {
      self.expect(last_committed(*reducer) == (step < 2 ? WEFT_NO_STEP : step - 2), "before the step");
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
      weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
      if (step == 3) finish.flags = WEFT_FINISH_COMMIT;
      self.expect(reducer->finish(finish), "finish");
    }
    self.expect(last_committed(*reducer) == 3, "with WEFT_FINISH_COMMIT");
  }));
}

TEST_CASE("all of a bucket is retained, in any number of pieces") {
  const Model model({{"few", {3}}, {"many", {700'000}}});  // launched last, and first
  const Registry registry("");
  test::RankBarrier reduced(2);
  check(run_threads(2, [&](Rank& self) {
    std::shared_ptr<Comm> other;
    self.expect(split(self.comm, registry, false, 0, self.rank, &other), "split");
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer,
                             {.limits = {0}, .flags = WEFT_REDUCER_RETAIN}),
                "create");
    if (!reducer || !other) return;
    Gradients gradients(model);
    gradients.fill(7, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
    self.expect(reducer->wait_param(1, 0), "the large bucket is reduced");
    self.expect(reduced.arrive(self), "meeting");
    self.comm->fail(Status::error(Code::kCancelled, "enough"));
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready after the failure");
    self.expect(!reducer->finish({}).ok(), "finish");
    self.expect(reducer->rebind(other), "rebind");
    self.expect(reducer->retry({}), "retry");
    const Gradients expected = reference(model, {7}, 2, 2);
    const std::string wrong = differs(model, gradients.memory(), expected.memory());
    self.expect(wrong.empty(), "result of " + wrong);
  }));
}

}  // namespace unit_reducer_commit
