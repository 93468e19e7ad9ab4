// Hooks without error feedback: noop, post_local_sgd, fp16 and bf16, alone and around other hooks; options;
// optional collectives.
#include "hooks_rig.h"

namespace unit_hooks_cast {

using namespace weft;
using namespace weft::test;

namespace {

MakeHook made(const std::string& name, const std::string& options = "") {
  return [=](std::shared_ptr<Hook>* hook) { return built_in(name, options, hook); };
}

MakeHook around(const std::string& name, const std::string& inner, const std::string& options = "") {
  return [=](std::shared_ptr<Hook>* hook) {
    std::shared_ptr<Hook> inside;
    WEFT_TRY(built_in(inner, options, &inside));
    return built_in(name, "", hook, std::move(inside));
  };
}

}  // namespace

TEST_CASE("casts give the mean to their precision, the same bits on every rank") {
  const Model model(layers());
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& [name, unit] : {std::pair{"fp16", 0x1p-11}, {"bf16", 0x1p-8}}) {
      for (const char* const options : {"", "order=ddp"}) {
        INFO(name << " " << options << ", " << ranks << " ranks");
        Training training;
        training.ranks = ranks;
        training.steps = 2;
        const Results results = train(model, made(name, options), training);
        CHECK(replicas_identical(results));
        for (uint64_t step = 0; step < 2; step++) {
          CHECK(largest_error(training, results, step) < 3 * unit);
          CHECK(largest_error(training, results, step) > 0);
        }
      }
    }
  }
}

TEST_CASE("a cast around all-reduce is the cast itself, and casts keep every dtype") {
  const Model model(mixed_params());
  Training training;
  training.ranks = 3;
  training.value = [](uint64_t step, int rank, size_t param, uint64_t element) {
    return value(step, rank, param, element);
  };
  for (const char* const name : {"fp16", "bf16"}) {
    const Results plain = train(model, made(name), training);
    CHECK(same_results(plain, train(model, around(name, "allreduce"), training)));
    CHECK(largest_error(training, plain, 0) < 0.04);
    CHECK_FALSE(same_results(plain, train(model, made("allreduce"), training)));
    // A cast to bf16 inside fp16 has the precision of bf16, and the result is still the mean.
    CHECK(largest_error(training, train(model, around(name, "bf16"), training), 0) < 0.08);
  }
}

TEST_CASE("a gradient of which only the mean fits into f16 does not overflow, unless DDP's order is chosen") {
  const Model model({{"a", {100}}});
  Training training;
  training.ranks = 4;
  training.value = [](uint64_t, int, size_t, uint64_t element) { return element % 2 ? 65504.0 : 60000.0; };
  const Results results = train(model, made("fp16"), training);
  CHECK(largest_error(training, results, 0) < 33);
  training.value = [](uint64_t, int rank, size_t, uint64_t) { return rank == 0 ? 100000.0 : 0.0; };
  CHECK(largest_error(training, train(model, made("fp16"), training), 0) < 33);
  CHECK(std::isinf(train(model, made("fp16", "order=ddp"), training)[0][0][0][0]));
}

TEST_CASE("a gradient arrives through fp16 down to half the smallest f16 times the ranks, and not below") {
  const Model model({{"a", {1000}}});
  constexpr double kSmallest = 0x1p-24;
  for (const int ranks : {1, 2, 3, 4}) {
    INFO(ranks << " ranks");
    Training training;
    training.ranks = ranks;
    // Multiples of the smallest result, equal on all ranks; the last two lie just above and just below half
    // of it.
    training.value = [=](uint64_t, int, size_t, uint64_t element) {
      const double k = element < 998 ? static_cast<double>(element) : element == 998 ? 0.51 : 0.49;
      return k * kSmallest * ranks;
    };
    const auto got = train(model, made("fp16"), training)[0][0][0];
    for (uint64_t k = 0; k < 998 && k * static_cast<uint64_t>(ranks) < 1024; k++) {
      REQUIRE(got[k] == static_cast<double>(k) * kSmallest * ranks);
    }
    CHECK(got[998] == kSmallest * ranks);
    CHECK(got[999] == 0);
  }
}

TEST_CASE("infinities and NaN are preserved by casts") {
  const Model model({{"a", {70}}, {"b", {5}}});
  const double inf = std::numeric_limits<double>::infinity();
  Training training;
  training.value = [=](uint64_t, int rank, size_t param, uint64_t element) {
    if (param == 0 && element == 3 && rank == 1) return std::nan("");
    if (param == 0 && element == 4) return rank == 1 ? -inf : 1.0;
    if (param == 0 && element == 5) return rank == 1 ? -inf : inf;
    return 1.0;
  };
  for (const char* const name : {"allreduce", "fp16", "bf16"}) {
    const auto got = train(model, made(name), training)[0][1];
    CHECK(std::isnan(got[0][3]));
    CHECK(got[0][4] == -inf);
    CHECK(std::isnan(got[0][5]));
    CHECK(got[0][6] == 1.0);
    CHECK(got[1][0] == 1.0);
  }
}

TEST_CASE("noop leaves every rank its own gradients") {
  const Model model(layers());
  Training training;
  training.ranks = 3;
  training.steps = 2;
  const Results results = train(model, made("noop"), training);
  for (uint64_t step = 0; step < 2; step++) {
    for (int rank = 0; rank < 3; rank++) {
      const auto& got = results[step][static_cast<size_t>(rank)];
      for (size_t i = 0; i < got.size(); i++) {
        for (uint64_t k = 0; k < got[i].size(); k++) {
          REQUIRE(got[i][k] == static_cast<double>(static_cast<float>(noise(step, rank, i, k))));
        }
      }
    }
  }
}

TEST_CASE("gradients that a hook inside a cast leaves unreduced are not divided") {
  const Model model(layers());
  Training training;
  training.ranks = 3;
  training.steps = 4;
  training.value = [](uint64_t step, int rank, size_t param, uint64_t element) {
    return value(step, rank, param, element);  // whole numbers that 16 bits represent
  };
  for (const char* const cast : {"fp16", "bf16"}) {
    for (const bool noop : {true, false}) {
      INFO(cast << (noop ? " noop" : " post_local_sgd"));
      const Results results =
          train(model, noop ? around(cast, "noop") : around(cast, "post_local_sgd", "start=2 local=none"),
                training);
      for (uint64_t step = noop ? 0 : 2; step < training.steps; step++) {
        for (int rank = 0; rank < training.ranks; rank++) {
          const auto& got = results[step][static_cast<size_t>(rank)];
          for (size_t i = 0; i < got.size(); i++) {
            for (uint64_t k = 0; k < got[i].size(); k++) REQUIRE(got[i][k] == value(step, rank, i, k));
          }
        }
      }
      if (noop) continue;
      CHECK(largest_error(training, results, 0) < 0.04);
      CHECK(largest_error(training, results, 1) < 0.04);
    }
  }
}

TEST_CASE("gradients that post_local_sgd leaves unreduced are divided by the rank's micro-batches") {
  const Model model(mixed_params());
  Training training;
  training.ranks = 3;
  training.steps = 3;
  training.micro_batches = 4;
  training.value = [](uint64_t step, int rank, size_t param, uint64_t element) {
    return 4 * value(step, rank, param, element);
  };
  for (const MakeHook& hook : {made("post_local_sgd", "start=1 local=none"),
                               around("fp16", "post_local_sgd", "start=1 local=none")}) {
    const Results results = train(model, hook, training);
    for (uint64_t step = 1; step < training.steps; step++) {
      for (int rank = 0; rank < training.ranks; rank++) {
        const auto& got = results[step][static_cast<size_t>(rank)];
        for (size_t i = 0; i < got.size(); i++) {
          for (uint64_t k = 0; k < got[i].size(); k++) REQUIRE(got[i][k] == value(step, rank, i, k));
        }
      }
    }
  }
}

TEST_CASE("an invalid hook name or option is refused with the reason") {
  std::shared_ptr<Hook> hook, inner;
  CHECK(has(built_in("fp17", "", &hook).text(), "unknown hook \"fp17\"; known: "));
  CHECK(has(built_in("fp16", "order=up", &hook).text(),
            "hook 'fp16': option order is 'up', must be one of scale_first, ddp"));
  CHECK(has(built_in("fp16", "ordr=ddp", &hook).text(), "hook 'fp16' has no option 'ordr'; it has order"));
  CHECK(has(built_in("fp16", "order=ddp order=ddp", &hook).text(), "option order is given twice"));
  CHECK(has(built_in("fp16", "order", &hook).text(), "option 'order' has no value"));
  CHECK(has(built_in("allreduce", "a=1", &hook).text(), "hook 'allreduce' has no option 'a'; it has none"));
  REQUIRE(built_in("bf16", "order=ddp", &inner).ok());
  CHECK(has(built_in("noop", "", &hook, inner).text(), "hook 'noop' takes no inner hook, but one is given"));
  REQUIRE(built_in("fp16", "", &hook, inner).ok());
  CHECK(hook->name() == "fp16(order=scale_first)[bf16(order=ddp)[allreduce]]");
}

TEST_CASE("hooks that compute refuse non-float gradients by name") {
  weft_bucket_param param{};
  param.name = "counts";
  param.count = 10;
  weft_bucket bucket{};
  bucket.dtype = WEFT_DTYPE_I32;
  bucket.count = 10;
  bucket.size = 2;
  bucket.params = &param;
  bucket.param_count = 1;
  for (const char* const name :
       {"fp16", "bf16", "int8", "fp8", "quantize", "onebit", "topk", "powersgd", "batched_powersgd"}) {
    std::shared_ptr<Hook> hook;
    REQUIRE(built_in(name, "", &hook).ok());
    weft_hook_plan plan{};
    const Status status = hook->plan(bucket, &plan);
    CHECK(status.code() == Code::kUnsupported);
    CHECK(has(status.text(), "supports only floating-point gradients, not i32 (parameter 'counts')"));
    CHECK(has(status.text(), name));
  }
}

TEST_CASE("different hook options on ranks are an error that names both") {
  const Model model({{"a", {10}}});
  const auto failures = run_ranks(2, [&](Rank& self) {
    std::shared_ptr<Hook> hook;
    self.expect(built_in("fp16", self.rank == 0 ? "" : "order=ddp", &hook), "hook");
    std::unique_ptr<Reducer> reducer;
    const Status status = make_reducer(self.comm, model, hook, &reducer);
    self.expect(status.code() == Code::kMismatch, "code");
    self.expect(has(status.text(), "'fp16(order=scale_first)[allreduce]' on rank 0") &&
                    has(status.text(), "'fp16(order=ddp)[allreduce]' on rank 1"),
                status.text());
  });
  check(failures);
}

namespace {

// Even steps run the first of two all-reduces, odd steps the second; `stubborn` never leaves one out.
class Alternating final : public Hook {
 public:
  explicit Alternating(bool stubborn) : stubborn_(stubborn) {}
  std::string name() const override { return "alternating"; }
  Status plan(const weft_bucket& bucket, weft_hook_plan* plan) override {
    plan->collective_count = 2;
    for (int k = 0; k < 2; k++) {
      weft_hook_collective& c = plan->collectives[k];
      c.coll = WEFT_COLL_ALL_REDUCE;
      c.dtype = bucket.dtype;
      c.op = k == 0 ? WEFT_OP_SUM : WEFT_OP_AVG;
      c.count = bucket.count;
      c.flags = WEFT_HOOK_COLLECTIVE_OPTIONAL;
    }
    return {};
  }
  Status stage(const weft_bucket& bucket, weft_stage* stage) override {
    if (stubborn_ || stage->index == bucket.step % 2) stage->dynamic_count = bucket.count;
    return {};
  }

 private:
  const bool stubborn_;
};

}  // namespace

TEST_CASE("an optional collective runs in the steps in which its stage requests it") {
  const Model model(layers());
  Training training;
  training.ranks = 3;
  training.steps = 4;
  training.value = [](uint64_t, int, size_t, uint64_t) { return 1.0; };
  const Results results = train(
      model,
      [](std::shared_ptr<Hook>* hook) {
        *hook = std::make_shared<Alternating>(false);
        return Status();
      },
      training);
  for (uint64_t step = 0; step < 4; step++) CHECK(results[step][1][0][0] == (step % 2 == 0 ? 3.0 : 1.0));
}

TEST_CASE("a rank that skips a collective that the others run fails the step by name") {
  const Model model({{"a", {10}}, {"b", {10}}});
  const auto failures = run_ranks(2, [&](Rank& self) {
    std::unique_ptr<Reducer> reducer;
    const auto hook = std::make_shared<Alternating>(self.rank == 1);
    self.expect(make_reducer(self.comm, model, hook, &reducer, {.timeout_ms = 10'000}), "create");
    if (!reducer) return;
    Gradients gradients(model);
    Status status;
    for (uint64_t step = 0; step < 2 && status.ok(); step++) {
      status = train_step(*reducer, gradients, step);
    }
    self.expect(status.code() == Code::kMismatch, status.text());
  });
  check(failures);
}

}  // namespace unit_hooks_cast
