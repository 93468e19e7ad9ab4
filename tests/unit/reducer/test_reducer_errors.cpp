// lib/reducer/reducer: misuse is refused by name, mismatches are errors on every rank, and failures end a
// step without changing the program's memory.
#include <atomic>

#include "device/arena.h"
#include "reducer_rig.h"

namespace unit_reducer_errors {

using namespace weft;
using namespace weft::test;

namespace {

const std::vector<TestParam> kThree = {{"a", {10}}, {"b", {3, 2}}, {"c", {5}, Dtype::kF64}};

// Runs the body with a reducer of one rank.
void alone(const RigOptions& rig, const std::function<void(Rank&, Reducer&, const Model&)>& body) {
  const Model model(kThree);
  const auto failures = run_threads(1, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
    if (reducer) body(self, *reducer, model);
  });
  check(failures);
}

void expect_error(Rank& self, const Status& status, Code code, const std::string& part) {
  self.expect(status.code() == code && has(status.text(), part),
              cat("expected ", code_name(code), " '", part, "', got ", code_name(status.code()), " '",
                  status.text(), "'"));
}

}  // namespace

TEST_CASE("ready refuses invalid gradients by name, and the step continues") {
  alone({}, [](Rank& self, Reducer& reducer, const Model& model) {
    Gradients gradients(model);
    gradients.fill(1, 0);
    expect_error(self, reducer.ready(1, gradients[1], nullptr), Code::kState,
                 "'b') became ready outside a step");
    self.expect(reducer.begin(nullptr), "begin");
    expect_error(self, reducer.ready(3, gradients[1], nullptr), Code::kArg,
                 "parameter 3 is unknown: the reducer has 3 parameters");
    expect_error(self, reducer.ready(1, nullptr, nullptr), Code::kArg, "'b'): the gradient is NULL");
    expect_error(self, reducer.ready(1, gradients[1] + 1, nullptr), Code::kArg,
                 "is not aligned to its 4-byte elements");
    const weft_stream cuda{sizeof cuda, WEFT_DEVICE_CUDA, 0, nullptr};
    expect_error(self, reducer.ready(1, gradients[1], &cuda), Code::kUnsupported,
                 "the stream belongs to a device");
    self.expect(reducer.ready(1, gradients[1], nullptr), "ready");
    expect_error(self, reducer.ready(1, gradients[1], nullptr), Code::kState, "'b') became ready twice");
    self.expect(reducer.error().code() == Code::kState, "error() remembers");
    self.expect(reducer.ready(0, gradients[0], nullptr), "ready");
    self.expect(reducer.ready(2, gradients[2], nullptr), "ready");
    expect_error(self, reducer.finish({sizeof(weft_finish_options), 0, &cuda}), Code::kUnavailable,
                 "weft_stream.kind is WEFT_DEVICE_CUDA, which is not available");
    self.expect(reducer.finish({}), "finish");
    self.expect(differs(model, gradients.memory(), reference(model, {1}, 1, 1).memory()).empty(), "result");
    expect_error(self, reducer.ready(0, gradients[0], nullptr), Code::kState, "outside a step");
    void* view = nullptr;
    expect_error(self, reducer.grad_view(0, &view), Code::kState, "copy mode");
  });
}

TEST_CASE("begin and finish refuse invalid arguments") {
  alone({}, [](Rank& self, Reducer& reducer, const Model&) {
    expect_error(self, reducer.finish({}), Code::kState, "finish without begin");
    weft_begin_options options = WEFT_BEGIN_OPTIONS_INIT;
    options.flags = WEFT_BEGIN_NO_DATA;
    expect_error(self, reducer.begin(&options), Code::kState,
                 "WEFT_BEGIN_NO_DATA needs a reducer created with WEFT_REDUCER_UNEVEN");
    options.flags = 1u << 20;
    expect_error(self, reducer.begin(&options), Code::kArg, "unknown flags");
    options.flags = 0;
    options.weight = 0.5;
    expect_error(self, reducer.begin(&options), Code::kArg, "weight is 0.5");
    options.weight = -1;
    expect_error(self, reducer.begin(&options), Code::kArg, "weight is -1");
    options.weight = 1;
    self.expect(reducer.begin(&options), "begin");
    expect_error(self, reducer.begin(nullptr), Code::kState, "begin inside step 0");
  });
}

TEST_CASE("finish names every gradient that never became ready and leaves the step open") {
  alone({}, [](Rank& self, Reducer& reducer, const Model& model) {
    Gradients gradients(model);
    gradients.fill(1, 0);
    self.expect(reducer.begin(nullptr), "begin");
    self.expect(reducer.ready(1, gradients[1], nullptr), "ready");
    expect_error(self, reducer.finish({}), Code::kState,
                 "2 of 3 parameters never became ready in step 0 on rank 0: 'a', 'c'");
    self.expect(reducer.ready(0, gradients[0], nullptr), "ready");
    expect_error(self, reducer.finish({}), Code::kState, "1 of 3 parameters");
    self.expect(reducer.ready(2, gradients[2], nullptr), "ready");
    self.expect(reducer.finish({}), "finish");
    self.expect(differs(model, gradients.memory(), reference(model, {1}, 1, 1).memory()).empty(), "result");
  });
}

TEST_CASE("view mode refuses a gradient that is elsewhere") {
  alone({.mode = WEFT_GRADIENT_VIEW}, [](Rank& self, Reducer& reducer, const Model& model) {
    Gradients gradients(model);
    self.expect(reducer.begin(nullptr), "begin");
    expect_error(self, reducer.ready(0, gradients[0], nullptr), Code::kArg, ", expected at");
    void* view = nullptr;
    expect_error(self, reducer.grad_view(9, &view), Code::kArg, "parameter 9 is unknown");
    self.expect(reducer.ready(0, nullptr, nullptr), "ready");
  });
}

namespace {

weft_tensor tensor_of(const Model& model, size_t i, void* data) {
  const weft_param& p = model.c()[i];
  return {sizeof(weft_tensor), data, p.dtype, p.ndim, p.shape, p.strides, p.device_kind, p.device};
}

}  // namespace

TEST_CASE("a tensor is accepted if it matches its parameter, otherwise refused with both descriptions") {
  const Model model({{"w", {2, 3}},
                     {"turned", {5, 7}, Dtype::kF32, {1, 5}},
                     {"padded", {6, 1, 5}, Dtype::kF32, {9, 9, 1}},
                     {"one", {}, Dtype::kF64},
                     {"none", {4, 0}},
                     {"entries", {4}, Dtype::kF32, {1}, 1}});
  check(run_threads(1, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    const RigOptions rig{.flags = WEFT_REDUCER_STRICT_STRIDES};
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
    if (!reducer) return;
    Gradients gradients(model);
    gradients.fill(1, 0);
    const auto given = [&](size_t i) { return tensor_of(model, i, gradients[i]); };
    const auto refuse = [&](size_t i, const weft_tensor& tensor, const std::string& text) {
      expect_error(self, reducer->ready_tensor(i, tensor, nullptr), Code::kArg, text);
    };
    self.expect(reducer->begin(nullptr), "begin");
    weft_tensor tensor = given(0);
    tensor.dtype = WEFT_DTYPE_F16;
    refuse(0, tensor, "parameter 0 ('w'): its gradient is f16 [2, 3]");
    refuse(0, tensor, "and must be f32 [2, 3]");
    tensor.dtype = WEFT_DTYPE_C64;
    refuse(0, tensor, "is c64 [2, 3]");
    tensor.dtype = 77;
    refuse(0, tensor, "of unknown dtype 77 [2, 3]");
    tensor = given(0);
    const int64_t longer[] = {2, 4}, flat[] = {6}, turned[] = {1, 2};
    tensor.shape = longer;
    tensor.strides = nullptr;
    refuse(0, tensor, "is f32 [2, 4], and must be f32 [2, 3]");
    tensor.shape = flat;
    tensor.ndim = 1;
    refuse(0, tensor, "is f32 [6], and must be f32 [2, 3]");
    tensor.ndim = 17;
    refuse(0, tensor, "weft_tensor.ndim is 17: allowed are 0 to 16");
    tensor.ndim = -1;
    refuse(0, tensor, "ndim is -1");
    tensor.ndim = 1;
    tensor.shape = nullptr;
    refuse(0, tensor, "shape is NULL");
    tensor = given(0);
    tensor.strides = turned;
    refuse(0, tensor, "is f32 [2, 3] with strides [1, 2], and must be f32 [2, 3]");
    tensor = given(0);
    tensor.device_kind = WEFT_DEVICE_CUDA;
    tensor.device = 3;
    refuse(0, tensor, "on CUDA device 3, and must be f32 [2, 3]");
    tensor = given(1);
    tensor.strides = nullptr;
    refuse(1, tensor, "is f32 [5, 7], and must be f32 [5, 7] with strides [1, 5]");
    refuse(5, given(5), "weft_reducer_ready_sparse");
    refuse(6, given(0), "parameter 6 is unknown");
    const int64_t odd[] = {9, 77, 1};  // the stride of one element does not matter
    tensor = given(2);
    tensor.strides = odd;
    self.expect(reducer->ready_tensor(2, tensor, nullptr), "padded");
    for (const size_t i : {0, 1, 3, 4}) self.expect(reducer->ready_tensor(i, given(i), nullptr), "ready");
    expect_error(self, reducer->ready_tensor(0, given(0), nullptr), Code::kState, "became ready twice");
    self.expect(reducer->ready_sparse(5, WEFT_SPARSE_INIT, nullptr), "sparse");
    self.expect(reducer->finish({}), "finish");
    const Gradients expected = reference(model, {1}, 1, 1);
    for (const size_t i : {0, 1, 2, 3, 4})
      self.expect(gradients.memory()[i] == expected.memory()[i], model[i].name);
  }));
}

TEST_CASE("a tensor in its view must have the view's layout, any other one the parameter's") {
  const Model model({{"padded", {6, 5}, Dtype::kF32, {9, 1}}, {"turned", {5, 7}, Dtype::kF32, {1, 5}}});
  for (const uint64_t flags : {uint64_t{0}, WEFT_REDUCER_COPY_STRAYS}) {
    check(run_threads(1, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      const RigOptions rig{.mode = WEFT_GRADIENT_VIEW, .flags = flags};
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, rig), "create");
      if (!reducer) return;
      Gradients gradients(model);
      self.expect(reducer->begin(nullptr), "begin");
      void* view = nullptr;
      self.expect(reducer->grad_view(0, &view), "view");
      weft_tensor tensor = tensor_of(model, 0, view);
      expect_error(self, reducer->ready_tensor(0, tensor, nullptr), Code::kArg,
                   "with strides [9, 1], and must be f32 [6, 5]");
      tensor.data = gradients[0];
      if (flags == 0) {
        expect_error(self, reducer->ready_tensor(0, tensor, nullptr), Code::kArg, "weft_reducer_grad_view");
        tensor.data = view;
        tensor.strides = nullptr;
      }
      self.expect(reducer->ready_tensor(0, tensor, nullptr), "padded");
      self.expect(reducer->ready_tensor(1, tensor_of(model, 1, nullptr), nullptr), "in its view");
      self.expect(reducer->finish({}), "finish");
    }));
  }
}

TEST_CASE("a complex tensor is accepted for a complex parameter") {
  const int64_t shape[] = {3, 2}, turned[] = {1, 3};
  weft_param param = WEFT_PARAM_INIT;
  param.name = "c";
  param.dtype = WEFT_DTYPE_C64;
  param.ndim = 2;
  param.shape = shape;
  param.strides = turned;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  options.flags = WEFT_REDUCER_STRICT_STRIDES;
  check(run_threads(1, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(Reducer::create(self.comm, options, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    float gradient[12] = {};
    weft_tensor tensor{sizeof tensor, gradient, WEFT_DTYPE_F32, 2, shape, turned, WEFT_DEVICE_HOST, 0};
    self.expect(reducer->begin(nullptr), "begin");
    expect_error(self, reducer->ready_tensor(0, tensor, nullptr), Code::kArg,
                 "is f32 [3, 2] with strides [1, 3], and must be c64 [3, 2] with strides [1, 3]");
    tensor.dtype = WEFT_DTYPE_C64;
    tensor.strides = nullptr;
    expect_error(self, reducer->ready_tensor(0, tensor, nullptr), Code::kArg, "is c64 [3, 2], and must be");
    tensor.strides = turned;
    self.expect(reducer->ready_tensor(0, tensor, nullptr), "ready");
    self.expect(reducer->finish({}), "finish");
  }));
}

TEST_CASE("if many threads make one gradient ready, one succeeds") {
  alone({}, [](Rank& self, Reducer& reducer, const Model& model) {
    Gradients gradients(model);
    for (int step = 0; step < 50; step++) {
      gradients.fill(static_cast<uint64_t>(step), 0);
      self.expect(reducer.begin(nullptr), "begin");
      std::atomic<int> succeeded{0}, twice{0};
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; t++) {
        threads.emplace_back([&] {
          for (size_t i = 0; i < model.size(); i++) {
            const Status status = reducer.ready(i, gradients[i], nullptr);
            (status.ok() ? succeeded : twice)++;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      self.expect(succeeded == 3 && twice == 6, "one each");
      self.expect(reducer.finish({}), "finish");
    }
  });
}

namespace {

// Creates a reducer on every rank, from a model and options of its own. Returns the statuses.
std::vector<Status> create_all(int ranks,
                               const std::function<Status(Rank&, std::unique_ptr<Reducer>*)>& create) {
  std::vector<Status> statuses(static_cast<size_t>(ranks));
  const auto failures = run_threads(ranks, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    statuses[static_cast<size_t>(self.rank)] = create(self, &reducer);
    self.expect(!self.comm->failed(), "the communicator still works");
    const Model model(kThree);
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "a reducer that all want");
  });
  check(failures);
  return statuses;
}

void check_all(const std::vector<Status>& statuses, Code code, const std::string& text) {
  for (const Status& status : statuses) {
    CHECK(status.code() == code);
    CHECK(status.text() == text);
  }
}

Status create_with(Rank& self, std::vector<TestParam> params, const RigOptions& rig,
                   std::unique_ptr<Reducer>* reducer) {
  const Model model(std::move(params));
  return make_reducer(self.comm, model, allreduce_hook(), reducer, rig);
}

}  // namespace

TEST_CASE("ranks that list different parameters all get the same error about the first that differs") {
  const auto with = [](size_t at, TestParam changed, int on) {
    return create_all(3, [=](Rank& self, auto* reducer) {
      std::vector<TestParam> params = kThree;
      if (self.rank == on) params[at] = changed;
      return create_with(self, params, {}, reducer);
    });
  };
  check_all(with(1, {"b", {3, 3}}, 2), Code::kMismatch,
            "parameter 1 'b' is f32 [3, 3] on rank 2 and f32 [3, 2] on rank 0");
  check_all(with(1, {"b", {3, 2}, Dtype::kF16}, 0), Code::kMismatch,
            "parameter 1 'b' is f32 [3, 2] on rank 1 and f16 [3, 2] on rank 0");
  check_all(with(0, {"z", {10}}, 1), Code::kMismatch,
            "parameter 0 is 'z' f32 [10] on rank 1 and 'a' f32 [10] on rank 0");
  check_all(with(1, {"b", {3, 2}, Dtype::kF32, {1, 3}}, 1), Code::kMismatch,
            "parameter 1 'b' is f32 [3, 2] with strides [1, 3] on rank 1 and f32 [3, 2] on rank 0");
}

TEST_CASE("ranks that list fewer parameters or a different order all get the same error") {
  check_all(create_all(3,
                       [](Rank& self, auto* reducer) {
                         std::vector<TestParam> params = kThree;
                         if (self.rank == 2) params.pop_back();
                         return create_with(self, params, {}, reducer);
                       }),
            Code::kMismatch,
            "rank 2 has 2 parameters and rank 0 has 3; parameter 2 'c' f64 [5] is on rank 0 only");
  check_all(create_all(2,
                       [](Rank& self, auto* reducer) {
                         std::vector<TestParam> params = kThree;
                         if (self.rank == 1) std::swap(params[0], params[1]);
                         return create_with(self, params, {}, reducer);
                       }),
            Code::kMismatch,
            "parameter 0 is 'b' f32 [3, 2] on rank 1 and 'a' f32 [10] on rank 0: the ranks list the same "
            "parameters in another order");
}

TEST_CASE("ranks with different bucket limits, flags or hooks all get the same error") {
  check_all(create_all(2,
                       [](Rank& self, auto* reducer) {
                         RigOptions rig;
                         if (self.rank == 1) rig.limits = {1, 2};
                         return create_with(self, kThree, rig, reducer);
                       }),
            Code::kMismatch,
            "bucket limits are [1, 2] on rank 1 and [256] on rank 0: pass the same on all ranks "
            "(weft_reducer_options.bucket_limits)");
  check_all(create_all(2,
                       [](Rank& self, auto* reducer) {
                         RigOptions rig;
                         if (self.rank == 1) rig.flags = WEFT_REDUCER_RETAIN | WEFT_REDUCER_ABSENT;
                         return create_with(self, kThree, rig, reducer);
                       }),
            Code::kMismatch,
            "weft_reducer_options.flags is WEFT_REDUCER_RETAIN | WEFT_REDUCER_ABSENT on rank 1 and 0 on rank "
            "0: pass the same on all ranks");
  class Other final : public Hook {
   public:
    std::string name() const override { return "other(rank=2)"; }
    Status plan(const weft_bucket&, weft_hook_plan*) override { return {}; }
    Status stage(const weft_bucket&, weft_stage*) override { return {}; }
  };
  check_all(create_all(2,
                       [](Rank& self, auto* reducer) {
                         const Model model(kThree);
                         std::shared_ptr<Hook> hook = std::make_shared<Other>();
                         if (self.rank == 1) hook = allreduce_hook();
                         return make_reducer(self.comm, model, hook, reducer);
                       }),
            Code::kMismatch,
            "the hook is 'allreduce' on rank 1 and 'other(rank=2)' on rank 0: create the reducer with the "
            "same hook and options on all ranks");
}

TEST_CASE("an invalid list of parameters on one rank is an error on all ranks") {
  const auto statuses = create_all(3, [](Rank& self, auto* reducer) {
    std::vector<TestParam> params = kThree;
    if (self.rank == 1) params[2].name = "a";
    return create_with(self, params, {}, reducer);
  });
  CHECK(statuses[1].code() == Code::kArg);
  CHECK(statuses[1].text() == "parameter 2 ('a'): parameter 0 has the same name");
  for (const size_t r : {size_t{0}, size_t{2}}) {
    CHECK(statuses[r].code() == Code::kMismatch);
    CHECK(statuses[r].text() == "rank 1 cannot create the reducer: " + statuses[1].text());
    CHECK(statuses[r].info().ranks == std::vector<int>{1});
  }
}

TEST_CASE("wrong options are refused on every rank") {
  const auto status_of = [](const RigOptions& rig) {
    return create_all(2,
                      [=](Rank& self, auto* reducer) { return create_with(self, kThree, rig, reducer); })[0];
  };
  CHECK(status_of({.mode = 7}).code() == Code::kArg);
  CHECK(status_of({.timeout_ms = -2}).code() == Code::kArg);
}

TEST_CASE("ranks with different numbers of micro-batches get an error, not a wrong result") {
  const Model model({{"a", {1000}}});
  const auto failures = run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
    if (!reducer) return;
    Gradients gradients(model);
    weft_begin_options options = WEFT_BEGIN_OPTIONS_INIT;
    options.micro_batches = self.rank == 0 ? 1 : 2;
    self.expect(reducer->begin(&options), "begin");
    const Status readied = reducer->ready(0, gradients[0], nullptr);
    self.expect(readied.ok() || readied.code() == Code::kMismatch, "ready");
    const Status status = reducer->finish({});
    expect_error(self, status, Code::kMismatch, "step 0");
    for (const char* const part :
         {"with micro_batches 1", "with micro_batches 2", "begin the step with the same micro_batches"}) {
      self.expect(status.text().find(part) != std::string::npos, status.text());
    }
    self.expect(status.text().find("scaled") == std::string::npos, status.text());
  });
  check(failures);
}

TEST_CASE("a missing rank is named at the deadline, and the completed buckets are known") {
  const Model model({{"a", {100}}, {"b", {100}}});
  std::atomic<bool> over{false};
  const auto failures = run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(
        make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {0}, .timeout_ms = 2000}),
        "create");
    if (!reducer) return;
    Gradients gradients(model);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(reducer->ready(1, gradients[1], nullptr), "ready");
    Context& context = self.comm->context();
    if (self.rank == 1) {  // never calls ready for 'a'
      self.expect(
          context.engine().wait([&] { return over.load(); }, Deadline::after(context.clock(), 60'000, 0)),
          "over");
      expect_error(self, reducer->finish({}), Code::kTimeout, "rank 0 reports");
      return;
    }
    self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
    const Status status = reducer->finish({});
    expect_error(self, status, Code::kTimeout, "step 0, 1 of 2 buckets reduced: ");
    self.expect(status.info().ranks == std::vector<int>{1} && has(status.text(), "waiting for rank 1"),
                "who is missing: " + status.text());
    weft_bucket_info first{}, second{};
    self.expect(reducer->bucket(0, &first, nullptr, 0), "bucket");
    self.expect(reducer->bucket(1, &second, nullptr, 0), "bucket");
    self.expect(first.done_ns > 0 && second.done_ns == 0, "which completed");
    over = true;
  });
  check(failures);
}

TEST_CASE("abort in the middle of a step ends it on all ranks") {
  const Model model({{"a", {100}}, {"b", {100}}});
  RankBarrier begun(3);
  const auto failures = run_threads(3, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(begun.arrive(self), "all have begun");
    const Status first = reducer->ready(1, gradients[1], nullptr);
    self.expect(first.ok() || first.code() == Code::kAborted, "ready");
    if (self.rank == 1) self.comm->fail(Status::error(Code::kAborted, "the loss is NaN"));
    if (self.rank != 1) static_cast<void>(reducer->ready(0, gradients[0], nullptr));
    expect_error(self, self.rank == 1 ? reducer->begin(nullptr) : reducer->finish({}), Code::kAborted,
                 "the loss is NaN");
    expect_error(self, reducer->finish({}), self.rank == 1 ? Code::kAborted : Code::kState, "");
    expect_error(self, reducer->begin(nullptr), Code::kAborted, "the loss is NaN");
  });
  check(failures);
}

TEST_CASE("finish ends a failed step, also with missing or absent parameters or while uses are learned") {
  for (const uint64_t flags : {uint64_t{WEFT_REDUCER_ABSENT}, uint64_t{WEFT_REDUCER_STATIC}}) {
    const Model model({{"a", {3}}, {"b", {4}}});
    RankBarrier begun(2);
    check(run_threads(2, [&](Rank& self) {
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.flags = flags}), "create");
      if (!reducer) return;
      Gradients gradients(model);
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(reducer->ready(0, gradients[0], nullptr), "ready");
      self.expect(begun.arrive(self), "all have begun");
      if (self.rank == 0) self.comm->fail(Status::error(Code::kAborted, "enough"));
      const bool failed = self.comm->context().engine().wait(
          [&] { return self.comm->failed(); }, Deadline::after(self.comm->context().clock(), 10'000, 0));
      self.expect(failed, "the communicator fails");
      const uint64_t rest = flags == WEFT_REDUCER_ABSENT ? WEFT_FINISH_REST_ABSENT : 0;
      const Status finished = reducer->finish({sizeof(weft_finish_options), rest, nullptr, 0});
      self.expect(finished.code() == Code::kAborted, finished.text());
      const Status again = reducer->finish({});
      self.expect(has(again.text(), "finish without begin"), again.text());
    }));
  }
}

TEST_CASE("destroy in the middle of a step fails it on all ranks and does not change the gradients") {
  const Model model({{"a", {100'000}}, {"b", {100'000}}});
  RankBarrier begun(3), over(3);
  const auto failures = run_threads(3, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.limits = {0}}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    gradients.fill(1, self.rank);
    self.expect(reducer->begin(nullptr), "begin");
    self.expect(begun.arrive(self), "all have begun");
    if (self.rank == 1) {
      static_cast<void>(reducer->ready(0, gradients[0], nullptr));
      reducer.reset();
      // No thread of Weft writes here any more: the thread sanitizer would report it, and the comparison
      // would fail.
      for (Bytes& memory : gradients.memory()) std::fill(memory.begin(), memory.end(), std::byte{1});
      const std::vector<Bytes> after = gradients.memory();  // a copy
      self.expect(over.arrive(self), "the others have finished");
      self.expect(after == gradients.memory(), "written after destroy");
      self.expect(self.comm->failed(), "the others count on this rank");
      return;
    }
    static_cast<void>(ready_all(*reducer, pointers(gradients), 1));
    expect_error(self, reducer->finish({}), Code::kCancelled, "destroyed its reducer in step 0");
    self.expect(over.arrive(self), "all are over");
  });
  check(failures);
}

TEST_CASE("a reducer may outlive its communicator's and its context's handles") {
  const Model model(kThree);
  const auto failures = run_threads(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer, {.mode = WEFT_GRADIENT_VIEW}),
                "create");
    if (!reducer) return;
    void* view = nullptr;
    self.expect(reducer->grad_view(0, &view), "view");
    const auto context = self.comm->shared_context();
    self.expect(reducer->begin(nullptr), "begin");
    (void)self.comm->close().ok();
    (void)context->close().ok();
    static_cast<void>(reducer->ready(0, nullptr, nullptr));
    self.expect(reducer->finish({}).code() == Code::kCancelled, "finish");
    self.expect(reducer->begin(nullptr).code() == Code::kCancelled, "begin");
    std::memset(view, 1, 40);  // views live as long as the reducer
    reducer.reset();
  });
  check(failures);
}

TEST_CASE("destroying reducers between steps leaves the communicator as it was") {
  const Model model(kThree);
  const auto failures = run_threads(2, [&](Rank& self) {
    const uint64_t before = self.comm->collectives().arena()->populated_bytes();
    for (int i = 0; i < 3; i++) {
      std::unique_ptr<Reducer> reducer;
      self.expect(make_reducer(self.comm, model, allreduce_hook(), &reducer), "create");
      if (!reducer) return;
      Gradients gradients(model);
      self.expect(reducer->begin(nullptr), "begin");
      self.expect(ready_all(*reducer, pointers(gradients), 1), "ready");
      self.expect(reducer->finish({}), "finish");
    }
    self.expect(!self.comm->failed(), "the communicator works");
    self.expect(self.comm->collectives().arena()->populated_bytes() == before, "memory was given back");
  });
  check(failures);
}

}  // namespace unit_reducer_errors
