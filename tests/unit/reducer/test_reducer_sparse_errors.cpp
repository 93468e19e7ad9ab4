// Misuse of sparse gradients by the program, and invalid data from other ranks.
#include "reducer/feature/sparse/sparse_gradient.h"
#include "sparse_rig.h"

namespace weft::hook_noop {
const HookFactory& factory();
}

namespace unit_reducer_sparse_errors {

using namespace weft;
using namespace weft::test;

namespace {

const std::vector<TestParam>& params() {
  static const std::vector<TestParam> list = {{"dense", {4}}, {"sparse", {6, 2, 3}, Dtype::kF32, {}, 2}};
  return list;
}

// One rank's side of an exchange; the test writes the other ranks' messages.
class OneSide {
 public:
  explicit OneSide(int size) : gradient_(param(), {}, &bytes_) {
    const TestParam test{"p", {10, 1}, Dtype::kF32, {}, 1};
    const Coo coo = make_coo(test, {2, 5}, [](uint64_t e, uint64_t) { return static_cast<double>(e); });
    REQUIRE(gradient_.check(coo.c()).ok());
    REQUIRE(gradient_.put(coo.c(), false).ok());
    REQUIRE(gradient_.complete(host_ops()).ok());
    gradient_.begin({.rank = 0, .size = size});
    REQUIRE(stage(0).ok());
  }
  Status stage(uint32_t stage) {
    WEFT_TRY(gradient_.enter(stage));
    while (!gradient_.work(host_ops())) {
    }
    return {};
  }
  CollectiveArgs collective(uint32_t index) {
    CollectiveArgs args;
    args.coll = Coll::kAllGather;
    gradient_.fill(index, &args);
    return args;
  }
  void counts(const std::vector<uint64_t>& all) {
    std::memcpy(collective(0).dst, all.data(), all.size() * sizeof(uint64_t));
  }
  void rows(const std::vector<int64_t>& all) {
    std::memcpy(collective(1).dst, all.data(), all.size() * sizeof(int64_t));
  }
  const SparseGradient& gradient() const { return gradient_; }

 private:
  static Param param() {
    Param p;
    p.shape = {10, 1};
    p.strides = {1, 1};
    p.count = 10;
    p.sparse_ndim = 1;
    return p;
  }
  std::atomic<uint64_t> bytes_{0};
  SparseGradient gradient_;
};

}  // namespace

TEST_CASE("misuse of sparse gradients is refused at the call, by name") {
  const Model model(params());
  check(run_threads(1, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    const auto refused = [&](const Status& status, Code code, const char* part) {
      self.expect(status.code() == code && has(status.text(), part), cat(part, ": ", status.text()));
    };
    Gradients gradients(model);
    const Coo good = make_coo(model[1], {0, 11, 11}, [](uint64_t, uint64_t) { return 1.0; });
    refused(reducer->ready_sparse(1, good.c(), nullptr), Code::kState,
            "'sparse') became ready outside a step");
    self.expect(reducer->begin(nullptr), "begin");
    refused(reducer->ready(1, gradients[1], nullptr), Code::kArg, "'sparse'): its gradient is sparse");
    refused(reducer->ready_sparse(0, good.c(), nullptr), Code::kArg, "'dense'): its gradient is not sparse");
    refused(reducer->ready_sparse(2, good.c(), nullptr), Code::kArg, "parameter 2 is unknown");
    refused(reducer->result(1, gradients[1]), Code::kArg, "'sparse'): its gradient is sparse");
    for (const auto& [at, index] : {std::pair{size_t{1}, int64_t{6}}, {4, 2}, {0, -1}, {5, INT64_MIN}}) {
      Coo bad = good;
      bad.indices[at] = index;
      refused(reducer->ready_sparse(1, bad.c(), nullptr), Code::kArg,
              cat("index ", index, " in dimension ", at / 3).c_str());
    }
    weft_sparse null = good.c();
    null.indices = nullptr;
    refused(reducer->ready_sparse(1, null, nullptr), Code::kArg, "'sparse'): indices is NULL");
    null = good.c();
    null.values = nullptr;
    refused(reducer->ready_sparse(1, null, nullptr), Code::kArg, "values is NULL");
    null.count = UINT64_MAX;
    refused(reducer->ready_sparse(1, null, nullptr), Code::kArg, "weft_sparse.count is");
    self.expect(reducer->ready_sparse(1, good.c(), nullptr), "none of these counted");
    refused(reducer->ready_sparse(1, good.c(), nullptr), Code::kState, "'sparse') became ready twice");
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
    weft_sparse result{};
    refused(reducer->sparse_result(0, &result), Code::kArg, "'dense'): its gradient is not sparse");
    self.expect(reducer->sparse_result(1, &result), "result");
    self.expect(result.count == 2, "coalesced");
    self.expect(reducer->begin(nullptr), "begin");
    refused(reducer->sparse_result(1, &result), Code::kState, "or the next one has begun");
  }));
}

TEST_CASE("a sparse parameter has no view") {
  const Model model(params());
  check(run_threads(1, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.mode = WEFT_GRADIENT_VIEW}),
                "create");
    void* view = nullptr;
    const Status status = reducer->grad_view(1, &view);
    self.expect(status.code() == Code::kArg && has(status.text(), "sparse"), status.text());
  }));
}

TEST_CASE("a sharded reducer has no sparse parameters") {
  const Model model(params());
  check(run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    const Status status =
        make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = WEFT_REDUCER_SHARDED});
    self.expect(status.code() == Code::kUnsupported && has(status.text(), "('sparse') is sparse") &&
                    has(status.text(), "which WEFT_REDUCER_SHARDED does not support"),
                status.text());
  }));
}

TEST_CASE("a manifest contains how a parameter is sparse, and ranks must agree on it") {
  const auto made = [](TestParam param, auto change) {
    const Model model({std::move(param)});
    weft_param c = model.c()[0];
    change(c);
    Manifest manifest;
    return make_manifest(&c, 1, sizeof c, &manifest);
  };
  const auto nothing = [](weft_param&) {};
  CHECK(made({"p", {4, 2}, Dtype::kF32, {}, 2}, nothing).ok());
  CHECK(has(made({"p", {4, 2}, Dtype::kF32, {}, 3}, nothing).text(),
            "sparse_ndim is 3, but the parameter has 2 dimensions"));
  CHECK(has(made({"p", {}, Dtype::kF32, {}, 1}, nothing).text(),
            "sparse_ndim is 1, but the parameter has 0 dimensions"));
  CHECK(has(made({"p", {4, 2}, Dtype::kF32, {1, 4}, 1}, nothing).text(), "strides are set"));
  CHECK(
      has(made({"p", {4}}, [](weft_param& c) { c.sparse_ndim = 1; }).text(), "WEFT_PARAM_SPARSE is not set"));
  float place = 0;
  CHECK(has(made({"p", {4}, Dtype::kF32, {}, 1}, [&](weft_param& c) { c.gradient = &place; }).text(),
            "must be NULL for a sparse gradient"));
  check(run_threads(2, [&](Rank& self) {
    const Model model({{"p", {4, 2}, Dtype::kF32, {}, self.rank == 0 ? 1u : 2u}});
    std::unique_ptr<Reducer> reducer;
    const Status status = make_reducer(self.comm, model, allreduce_hook(), &reducer);
    self.expect(has(status.text(), "sparse f32 [4, 2] by 2 dimensions on rank 1"), status.text());
  }));
}

TEST_CASE("counts and indices of other ranks are checked before they are used") {
  {
    OneSide exchange(3);
    exchange.counts({2, 3, 11});
    const Status bad = exchange.stage(1);
    CHECK(has(bad.text(), "rank 2 published a count of 11 for this collective; at most 10"));
    CHECK(bad.info().ranks == std::vector<int>{2});
  }
  {
    OneSide exchange(2);
    exchange.counts({2, UINT64_MAX});
    CHECK(exchange.stage(1).code() == Code::kMismatch);
  }
  for (const auto& theirs : {std::vector<int64_t>{4, 4}, {5, 4}, {-1, 4}, {4, 10}, {INT64_MIN, INT64_MAX}}) {
    OneSide exchange(2);
    exchange.counts({2, 2});
    REQUIRE(exchange.stage(1).ok());
    exchange.rows({2, 5, theirs[0], theirs[1]});
    const Status bad = exchange.stage(2);
    CHECK(has(bad.text(), "rank 1 sent sparse rows that do not ascend or are outside 0 to 9"));
    CHECK(bad.info().ranks == std::vector<int>{1});
  }
  OneSide exchange(2);
  exchange.counts({2, 1});
  REQUIRE(exchange.stage(1).ok());
  exchange.rows({2, 5, 5, 77});  // entries beyond a rank's count are ignored
  REQUIRE(exchange.stage(2).ok());
  const float values[] = {0, 1, 2, 3};
  std::memcpy(exchange.collective(2).dst, values, sizeof values);
  REQUIRE(exchange.stage(3).ok());
  weft_sparse result{};
  exchange.gradient().result(&result);
  CHECK(result.count == 2);
  CHECK(static_cast<const float*>(result.values)[1] == 3.0f);
}

TEST_CASE("under noop every rank keeps its own entries") {
  const Model model(params());
  check(run_threads(2, [&](Rank& self) {
    std::shared_ptr<Hook> noop;
    self.expect(hook_noop::factory().make({{}, nullptr, host_ops()}, &noop), "noop");
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, noop, &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    const Coo coo = make_coo(model[1], {4, 1, 4}, [&](uint64_t, uint64_t) { return self.rank + 1.0; });
    for (int step = 0; step < 2; step++) {
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(reducer->ready_sparse(1, coo.c(), nullptr), "ready");
      self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
      self.expect(reducer->finish({}), "finish");
      weft_sparse result{};
      self.expect(reducer->sparse_result(1, &result), "result");
      self.expect(result.count == 2 &&
                      static_cast<const float*>(result.values)[3] == 2.0f * static_cast<float>(self.rank + 1),
                  "its own");
    }
  }));
}

}  // namespace unit_reducer_sparse_errors
