// A step in steady state allocates nothing on any thread of the process, over every backend, with the hooks
// that compute, and with more bucket shapes than most reducers have. Memory that a backend's library takes by
// malloc is not counted.
#include "counting_new.h"
#include "hooks_rig.h"
#include "loopback/loopback.h"
#include "shm/backend.h"
#ifdef WEFT_TEST_UCX
#include "ucx/backend.h"
#endif

using namespace weft;
using namespace weft::test;

namespace {

struct BackendRow {
  const char* name;
  const Backend& (*backend)();
};
constexpr BackendRow kBackends[] = {
    {"shm", shm::backend},
    {"loopback", loopback::backend},
#ifdef WEFT_TEST_UCX
    {"ucx", ucx::backend},
#endif
};

struct HookRow {
  const char* name;
  const char* options = "";
};
constexpr HookRow kHooks[] = {
    {"allreduce"}, {"fp16"}, {"int8"}, {"topk", "ratio=0.05"}, {"powersgd", "rank=2 start=2"},
};

// Sixty gradients of different sizes, each in its own bucket; some are exchanged in several pieces.
Model ladder() {
  std::vector<TestParam> params;
  for (int i = 0; i < 58; i++) params.push_back({cat("rung", i), {16 + i, 33}});
  params.push_back({"landing", {100, 201}});
  params.push_back({"roof", {256, 257}});
  return Model(params);
}

// Queues grow to their largest need, which differs from step to step; then nothing more is allocated.
constexpr int kWindow = 3;   // steps
constexpr int kWindows = 6;  // at least one of which allocates nothing

Status step(Reducer& reducer, Gradients& gradients, size_t count) {
  WEFT_TRY(reducer.begin(nullptr));
  for (size_t i = count; i-- > 0;) WEFT_TRY(reducer.ready(i, gradients[i], nullptr));
  return reducer.finish({});
}

}  // namespace

TEST_CASE("after a warm-up steps allocate nothing on any thread, over any backend, with any hook") {
  const Model model = ladder();
  for (const BackendRow& backend : kBackends) {
    for (const HookRow& row : kHooks) {
      RanksOptions options;
      options.backend = &backend.backend();
      std::vector<uint64_t> counted;  // by window; rank 0's
      counted.reserve(kWindows);
      check(run_threads(
          2,
          [&](Rank& self) {
            std::shared_ptr<Hook> hook;
            self.expect(built_in(row.name, row.options, &hook), "hook");
            std::unique_ptr<Reducer> reducer;
            self.expect(make_reducer(self.comm, model, hook, &reducer, {.limits = {0}}), "create");
            if (!reducer) return;
            self.expect(reducer->bucket_count() == model.size(), "a bucket each");
            Gradients gradients(model);
            gradients.fill(1, self.rank);
            Status status;
            if (self.rank == 0) counting_everywhere = true;
            for (int window = 0; window < kWindows; window++) {
              const uint64_t before = allocations;
              for (int i = 0; i < kWindow && status.ok(); i++)
                status = step(*reducer, gradients, model.size());
              if (self.rank == 0) counted.push_back(allocations - before);
            }
            if (self.rank == 0) counting_everywhere = false;
            self.expect(status, "step");
          },
          options));
      INFO(backend.name << ", " << row.name << ", by window: " << list_text(counted));
      CHECK(*std::min_element(counted.begin(), counted.end()) == 0);
    }
  }
}
