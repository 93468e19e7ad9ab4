// lib/reducer/feature/pre_step/pre_step: the pre-step work before gradients: buffers are broadcast from one
// rank, and values are compared.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "reducer_rig.h"
#include "shm/backend.h"

namespace unit_pre_step {

using namespace weft;
using namespace weft::test;

namespace {

// A small model: one weight, one frozen one, three buffers of which two have gaps or odd sizes.
class Replica {
 public:
  explicit Replica(int rank) { fill(rank); }
  void fill(int rank) {
    for (size_t i = 0; i < 5; i++) weight[i] = static_cast<float>(i);
    frozen = 77;
    for (size_t i = 0; i < 3; i++) mean[i] = 100.0 * rank + static_cast<double>(i);
    for (size_t i = 0; i < 8; i++) column[i] = static_cast<int16_t>(rank * 100 + static_cast<int>(i));
    batches = rank;
  }
  std::vector<weft_param> params() {
    static const int64_t five[] = {5}, three[] = {3}, four[] = {4}, two[] = {2};
    std::vector<weft_param> out(5, weft_param WEFT_PARAM_INIT);
    const char* const names[] = {"weight", "frozen", "mean", "column", "batches"};
    const int32_t dtypes[] = {WEFT_DTYPE_F32, WEFT_DTYPE_U8, WEFT_DTYPE_F64, WEFT_DTYPE_I16, WEFT_DTYPE_I64};
    void* const values[] = {weight, &frozen, mean, column, &batches};
    for (size_t i = 0; i < out.size(); i++) {
      out[i].name = names[i];
      out[i].dtype = dtypes[i];
      out[i].parameter = values[i];
      out[i].flags = i == 0 ? 0 : i == 1 ? WEFT_PARAM_STATE_ONLY : WEFT_PARAM_BUFFER;
    }
    out[0].ndim = out[2].ndim = out[3].ndim = 1;
    out[0].shape = five;
    out[2].shape = three;
    out[3].shape = four;
    out[3].strides = two;
    return out;
  }
  // Returns true if the buffers are those of this rank, and the gaps of "column" are still those of `self`.
  bool has_buffers_of(int rank, int self) const {
    bool same = batches == rank;
    for (size_t i = 0; i < 3; i++) same &= mean[i] == 100.0 * rank + static_cast<double>(i);
    for (size_t i = 0; i < 7; i++) {
      same &= column[i] == (i % 2 == 0 ? rank : self) * 100 + static_cast<int>(i);
    }
    return same;
  }

  float weight[5];
  uint8_t frozen;
  double mean[3];
  int16_t column[8];
  int64_t batches;
};

struct Wish {
  uint64_t flags = WEFT_REDUCER_BUFFERS;
  int32_t root = 0;
  uint32_t interval = 0;
  int32_t mode = WEFT_GRADIENT_COPY;
  int64_t timeout_ms = 0;
};

Status make(const std::shared_ptr<Comm>& comm, const std::vector<weft_param>& params, const Wish& wish,
            std::unique_ptr<Reducer>* reducer) {
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params.data();
  options.param_count = params.size();
  options.mode = wish.mode;
  options.accumulation = accumulation_in(wish.mode);
  options.flags = wish.flags | WEFT_REDUCER_KEEP_VALUES;  // the ranks' values differ
  options.buffers_root = wish.root;
  options.check_interval = wish.interval;
  options.timeout_ms = wish.timeout_ms;
  return Reducer::create(comm, options, allreduce_hook(), reducer);
}

// Runs the rest of a step; every rank's gradient is its rank number.
void end_step(Rank& self, Reducer& reducer, int32_t mode, float expected) {
  float own[5];
  void* gradient = own;
  if (mode == WEFT_GRADIENT_VIEW) self.expect(reducer.grad_view(0, &gradient), "view");
  auto* const values = static_cast<float*>(gradient);
  std::fill_n(values, 5, static_cast<float>(self.rank));
  self.expect(reducer.ready(0, gradient, nullptr), "ready");
  self.expect(reducer.finish({}), "finish");
  self.expect(std::all_of(values, values + 5, [&](float x) { return x == expected; }), "average");
}

weft_begin_options with(uint64_t flags) {
  weft_begin_options options = WEFT_BEGIN_OPTIONS_INIT;
  options.flags = flags;
  return options;
}

}  // namespace

TEST_CASE("buffers are the root's on every rank when a synchronised step has begun") {
  const auto body = [](Rank& self) {
    for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
      for (const int root : {0, self.size - 1, WEFT_ROOT_LAST_ACTIVE}) {
        Replica replica(self.rank);
        std::unique_ptr<Reducer> reducer;
        const uint64_t others =
            root == 0 ? WEFT_REDUCER_NORMS | WEFT_REDUCER_RETAIN | WEFT_REDUCER_ABSENT : 0;
        const Wish wish = {.flags = WEFT_REDUCER_BUFFERS | others, .root = root, .mode = mode};
        self.expect(make(self.comm, replica.params(), wish, &reducer), "create");
        if (!reducer) return;
        const int source = root == WEFT_ROOT_LAST_ACTIVE ? self.size - 1 : root;
        for (int step = 0; step < 3; step++) {
          replica.fill(self.rank);  // each rank's forward pass changes its own buffers
          const weft_begin_options local = with(WEFT_BEGIN_LOCAL);
          self.expect(reducer->begin(&local), "begin locally");
          self.expect(replica.has_buffers_of(self.rank, self.rank), "a local step moves nothing");
          self.expect(reducer->finish({}), "finish locally");
          self.expect(reducer->begin(nullptr), "begin");
          self.expect(replica.has_buffers_of(source, self.rank), "the root's buffers");
          end_step(self, *reducer, mode, static_cast<float>(self.size - 1) / 2);
        }
        weft_reducer_stats stats{};
        reducer->query(&stats);
        self.expect(stats.steps == 3, "steps");
        const std::string name = root == WEFT_ROOT_LAST_ACTIVE ? "\"last_active\"" : cat(root);
        const std::string report = reducer->report();
        self.expect(has(report, cat("\"buffers_root\": ", name, ",")), report);
      }
    }
  };
  for (const Backend* backend : {static_cast<const Backend*>(nullptr), &shm::backend()}) {
    for (const int ranks : {1, 2, 3}) {
      RanksOptions options;
      options.backend = backend;
      check(run_threads(ranks, body, options));
    }
  }
}

TEST_CASE("buffers come from the highest rank that has data in the step, also to ranks that have joined") {
  check(run_threads(3, [](Rank& self) {
    Replica replica(self.rank);
    std::unique_ptr<Reducer> reducer;
    const Wish wish = {.flags = WEFT_REDUCER_BUFFERS | WEFT_REDUCER_UNEVEN, .root = WEFT_ROOT_LAST_ACTIVE};
    self.expect(make(self.comm, replica.params(), wish, &reducer), "create");
    if (!reducer) return;
    // Rank 2 has no data in step 1, no rank in step 2; then 2 and later 1 run out of data.
    const weft_begin_options nothing = with(WEFT_BEGIN_NO_DATA);
    const auto expect_root = [&](int root, const char* what) {
      self.expect(replica.has_buffers_of(root, self.rank), what);
      replica.fill(self.rank);
    };
    self.expect(reducer->begin(nullptr), "begin");
    expect_root(2, "all have data");
    end_step(self, *reducer, WEFT_GRADIENT_COPY, 1);
    self.expect(reducer->begin(self.rank == 2 ? &nothing : nullptr), "begin");
    expect_root(1, "all but the last have data");
    if (self.rank == 2) {
      self.expect(reducer->finish({}), "finish");
    } else {
      end_step(self, *reducer, WEFT_GRADIENT_COPY, 1.0f / 3);
    }
    self.expect(reducer->begin(&nothing), "begin");
    expect_root(self.rank, "nobody has data");
    self.expect(reducer->finish({}), "finish");
    for (int step = 0; step < 2 - self.rank; step++) {
      self.expect(reducer->begin(nullptr), "begin");
      expect_root(1 - step, "ranks have joined");
      end_step(self, *reducer, WEFT_GRADIENT_COPY, step == 0 ? 1.0f / 3 : 0);
    }
    weft_join_result result{};
    self.expect(reducer->join({}, &result), "join");
    if (self.rank > 0) self.expect(replica.has_buffers_of(0, self.rank), "the last step's root");
    self.expect(result.last_active == 0 && result.steps == static_cast<uint64_t>(self.rank), "join's result");
  }));
}

TEST_CASE("values are compared when a step begins, and a difference fails its begin") {
  check(run_threads(3, [](Rank& self) {
    Replica replica(self.rank);
    std::unique_ptr<Reducer> reducer;
    const Wish wish = {.flags = WEFT_REDUCER_BUFFERS, .interval = 2};
    self.expect(make(self.comm, replica.params(), wish, &reducer), "create");
    if (!reducer) return;
    weft_broadcast_options repair = WEFT_BROADCAST_OPTIONS_INIT;
    repair.flags = WEFT_BROADCAST_PARAMS | WEFT_BROADCAST_STATE;
    for (int step = 0; step < 5; step++) {
      replica.fill(self.rank);
      // In steps without a check no rank notices.
      if (self.rank == 1 && step == 1) replica.weight[4] = 9;
      if (self.rank == 2 && step == 2) replica.frozen = 9;
      if (self.rank == 0 && step == 4) replica.weight[0] = 9;
      Status begun = reducer->begin(nullptr);
      if (step == 2 || step == 4) {
        const std::string name = step == 2 ? "parameter 1 ('frozen')" : "parameter 0 ('weight')";
        const int wrong = step == 2 ? 2 : 0;
        self.expect(begun.code() == Code::kMismatch && begun.info().ranks == std::vector<int>{wrong} &&
                        has(begun.text(), name) && has(begun.text(), cat("step ", step, " cannot begin")),
                    begun.text());
        self.expect(replica.has_buffers_of(self.rank, self.rank), "no buffers moved");
        self.expect(reducer->ready(0, replica.weight, nullptr).code() == Code::kState, "no step is open");
        self.expect(reducer->begin(nullptr).code() == Code::kMismatch, "it is still so");
        repair.root = 1;
        self.expect(reducer->broadcast(repair), "repair");
        begun = reducer->begin(nullptr);
      }
      self.expect(begun, "begin");
      self.expect(replica.has_buffers_of(0, self.rank), "buffers");
      end_step(self, *reducer, WEFT_GRADIENT_COPY, 1);
    }
    // The order of readiness was recorded, although the first attempt may have failed.
    self.expect(reducer->replan({}), "re-plan");
  }));
}

TEST_CASE("values of a rank that has joined are ignored in the comparison") {
  check(run_threads(3, [](Rank& self) {
    Replica replica(self.rank);
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self.comm, replica.params(), {.flags = WEFT_REDUCER_UNEVEN, .interval = 1}, &reducer),
                "create");
    if (!reducer) return;
    weft_join_result result{};
    if (self.rank == 0) {
      replica.weight[1] = 33;  // no longer updated
      const Status joined = reducer->join({}, &result);
      self.expect(joined.code() == Code::kMismatch && joined.info().ranks == std::vector<int>{2},
                  joined.text());
      self.expect(result.steps == 1, "a step before");
      replica.fill(0);
      self.expect(reducer->join({}, &result), "join again");
      return;
    }
    self.expect(reducer->begin(nullptr), "the others are equal");
    end_step(self, *reducer, WEFT_GRADIENT_COPY, 1);
    if (self.rank == 2) replica.weight[3] = 34;
    const Status begun = reducer->begin(nullptr);
    self.expect(
        begun.code() == Code::kMismatch && has(begun.text(), "ranks [2] do not hold the value of ranks [1]"),
        begun.text());
    replica.fill(self.rank);
    self.expect(reducer->join({}, &result), "join");
  }));
}

TEST_CASE("a step whose buffers do not arrive by the deadline has not begun") {
  check(run_threads(2, [](Rank& self) {
    Replica replica(self.rank);
    std::unique_ptr<Reducer> reducer;
    self.expect(make(self.comm, replica.params(), {.root = 1, .timeout_ms = 50}, &reducer), "create");
    if (!reducer || self.rank == 1) return;
    const Status begun = reducer->begin(nullptr);
    self.expect(!begun.ok() && self.comm->failed(), begun.text());
    self.expect(reducer->ready(0, replica.weight, nullptr).code() == Code::kState, "no step is open");
    self.expect(replica.has_buffers_of(0, 0), "buffers are as they were");
  }));
}

TEST_CASE("invalid or differing pre-step options are refused when a reducer is created") {
  check(run_threads(2, [](Rank& self) {
    Replica replica(self.rank);
    std::unique_ptr<Reducer> reducer;
    const auto refused = [&](const Wish& wish, Code code, const std::string& why) {
      const Status status = make(self.comm, replica.params(), wish, &reducer);
      self.expect(status.code() == code && has(status.text(), why), status.text() + ", not " + why);
    };
    refused({.root = 2}, Code::kArg, "buffers_root is 2: allowed are 0 to 1");
    refused({.root = -2}, Code::kArg, "buffers_root is -2: allowed are 0 to 1");
    refused({.flags = 0, .root = 1}, Code::kArg, "WEFT_REDUCER_BUFFERS");
    refused({.root = self.rank}, Code::kMismatch, "buffers_root is 1 on rank 1 and 0 on rank 0");
    refused({.interval = 3u + static_cast<uint32_t>(self.rank)}, Code::kMismatch,
            "check_interval is 4 on rank 1");
    std::vector<weft_param> params = replica.params();
    params[0].parameter = nullptr;
    self.expect(make(self.comm, params, {}, &reducer), "gradients need no value for buffers");
    const Status status = make(self.comm, params, {.interval = 1}, &reducer);
    self.expect(status.code() == Code::kArg && has(status.text(), "'weight') has no value"), status.text());
  }));
}

}  // namespace unit_pre_step
