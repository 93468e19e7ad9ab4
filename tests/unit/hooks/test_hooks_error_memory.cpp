// The error memory of hooks with error feedback: its size compared with the gradient, the warning when it
// keeps growing, and rescue=1, which sends such a bucket uncompressed until it has recovered.
#include <mutex>

#include "hook_simulation.h"
#include "loopback/loopback.h"

namespace unit_hooks_error_memory {

using namespace weft;
using namespace weft::test;

namespace {

struct Named {
  const char* name;
  const char* options;
};

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += double{v} * double{v};
  return std::sqrt(sum);
}

using Gradient = double (*)(uint64_t step, int rank, uint64_t element);

// All elements are similar, and so large that a hook that sends few of them needs hundreds of steps.
double dense(uint64_t step, int rank, uint64_t element) {
  return 1 + noise(step, rank, 0, element) / 8;
}
// Each rank has different values, the same in every step. DistributedDataParallel's feedback accumulates
// their difference from the mean.
double different(uint64_t /*step*/, int rank, uint64_t element) {
  return noise(0, rank, 0, element);
}
double noisy(uint64_t step, int rank, uint64_t element) {
  return noise(step, rank, 0, element);
}

void set(SimulatedHook& ranks, uint64_t step, Gradient gradient) {
  for (int r = 0; r < SimulatedHook::kRanks; r++) {
    for (size_t k = 0; k < ranks.values(r).size(); k++) {
      ranks.values(r)[k] = static_cast<float>(gradient(step, r, k));
    }
  }
}

struct Growing {
  const char* name;
  const char* options;
  Gradient gradient;
};
constexpr Growing kGrowing[] = {{"topk", "ratio=0.001", dense},
                                {"powersgd", "start=2 feedback=ddp", different},
                                {"batched_powersgd", "start=2 rank=1 feedback=ddp", different}};

}  // namespace

TEST_CASE("a hook with error feedback reports the norm of its error memory over that of the gradient") {
  constexpr Named kHooks[] = {{"int8", ""},
                              {"fp8", ""},
                              {"onebit", ""},
                              {"topk", "ratio=0.1"},
                              {"powersgd", "start=2 rank=1"},
                              {"powersgd", "start=2 rank=1 alternate=1"},
                              {"powersgd", "start=2 rank=1 feedback=ddp"},
                              {"batched_powersgd", "start=2 rank=1"}};
  for (const auto& [name, options] : kHooks) {
    for (const int64_t rows : {20, 300}) {  // the larger one is measured by a sample
      INFO(name << " " << options << ", " << rows << " rows");
      SimulatedHook ranks(name, options, {rows, 400});
      for (uint64_t step = 0; step < 5; step++) {
        set(ranks, step, noisy);
        const double gradient = norm(ranks.values(0));
        ranks.step();
        REQUIRE(ranks.memory(0).has_value());
        CHECK(ranks.memory(0)->ratio ==
              Approx(ranks.error_norm() / gradient).epsilon(rows == 20 ? 1e-4 : 0.05));
        CHECK_FALSE(ranks.memory(0)->growing);
      }
      CHECK(ranks.memory(0)->ratio > 0.001);
    }
  }
}

TEST_CASE("contributions of steps that failed are not fed back", "[host]") {
  SimulatedHook ranks("powersgd", "start=2 rank=1", {40, 30});
  const auto fill = [&] {
    double sum = 0;
    for (int r = 0; r < SimulatedHook::kRanks; r++) {
      for (uint64_t k = 0; k < 1200; k++) {
        ranks.values(r)[k] = static_cast<float>(noise(1, r, 0, k));
        if (r == 0) sum += double{ranks.values(r)[k]} * double{ranks.values(r)[k]};
      }
    }
    return std::sqrt(sum);
  };
  for (int step = 0; step < 3; step++) {
    fill();
    ranks.step();
  }
  for (int failed = 0; failed < 10; failed++) {
    fill();
    ranks.fail_step();
  }
  const double gradient = fill();
  ranks.step();
  CHECK(ranks.error_norm() < 1.01 * gradient);
}

TEST_CASE("hooks without error feedback report no error memory") {
  for (const auto& [name, options] :
       {Named{"allreduce", ""}, Named{"noop", ""}, Named{"quantize", ""}, Named{"int8", "feedback=0"},
        Named{"topk", "feedback=0"}, Named{"powersgd", "feedback=off"}}) {
    INFO(name << " " << options);
    SimulatedHook ranks(name, options, {20, 40});
    set(ranks, 0, noisy);
    if (std::string(name) != "noop") ranks.step();
    CHECK_FALSE(ranks.memory(0).has_value());
  }
}

TEST_CASE("an error memory that keeps growing is reported, one that converges is not", "[host]") {
  for (const auto& [name, options, gradient] : kGrowing) {
    INFO(name << " " << options);
    SimulatedHook ranks(name, options, {64, 64});
    uint64_t step = 0;
    while (step < 400 && !(step > 0 && ranks.memory(0)->growing)) {
      set(ranks, step++, gradient);
      ranks.step();
    }
    CHECK(step < 400);
    CHECK(ranks.memory(0)->ratio > 10);
  }
  for (const auto& [name, options] :
       {Named{"int8", ""}, Named{"onebit", ""}, Named{"topk", "ratio=0.1"},
        Named{"powersgd", "start=2 rank=2"}, Named{"batched_powersgd", "start=2 rank=4"}}) {
    INFO(name << " " << options);
    SimulatedHook ranks(name, options, {64, 64});
    for (uint64_t step = 0; step < 1000; step++) {
      set(ranks, step, step % 2 == 0 ? noisy : different);
      ranks.step();
      REQUIRE_FALSE(ranks.memory(0)->growing);
    }
  }
}

TEST_CASE("with rescue=1 a bucket is sent uncompressed until its memory has recovered, and loses nothing",
          "[host]") {
  for (const auto& [name, options, gradient] : kGrowing) {
    INFO(name << " " << options);
    constexpr uint64_t kSteps = 500, kCount = 64 * 64;
    SimulatedHook ranks(name, options + std::string(" rescue=1"), {64, 64});
    SimulatedHook without(name, options, {64, 64});
    std::vector<double> all(kCount), received(kCount);
    double largest = 0, largest_without = 0, recovered = 1e9;
    uint64_t uncompressed = 0;
    for (uint64_t step = 0; step < kSteps; step++) {
      set(ranks, step, gradient);
      set(without, step, gradient);
      for (int r = 0; r < 2; r++) {
        for (size_t k = 0; k < kCount; k++) all[k] += double{ranks.values(r)[k]} / 2;
      }
      ranks.step();
      without.step();
      const bool plain = ranks.moved_bytes() >= kCount * sizeof(float);
      REQUIRE(ranks.values(0) == ranks.values(1));
      for (size_t k = 0; k < kCount; k++) received[k] += double{ranks.values(0)[k]};
      if (step < 2) continue;  // powersgd does not compress yet
      uncompressed += plain;
      const double ratio = ranks.memory(0)->ratio;
      largest = std::max(largest, ratio);
      largest_without = std::max(largest_without, without.memory(0)->ratio);
      if (uncompressed > 0 && !plain) recovered = std::min(recovered, ratio);
    }
    CHECK(uncompressed > 10);
    CHECK(uncompressed < kSteps / 2 + 50);
    CHECK(recovered < 1.5);
    CHECK(largest_without > 2 * largest);
    if (std::string(options).find("ddp") != std::string::npos) continue;  // DDP's feedback loses some
    const std::vector<float> one = ranks.errors(0), two = ranks.errors(1);
    double difference = 0;
    for (size_t k = 0; k < kCount; k++) {
      difference =
          std::max(difference, std::fabs(all[k] - received[k] - (double{one[k]} + double{two[k]}) / 2));
    }
    CHECK(difference < 0.05);
  }
}

TEST_CASE("a hook that is saved during a rescue continues with the same bits", "[host]") {
  for (const auto& [name, options, gradient] : kGrowing) {
    INFO(name << " " << options);
    const std::string with = options + std::string(" rescue=1");
    SimulatedHook ranks(name, with, {64, 64});
    uint64_t step = 0;
    const auto plain = [&] { return step > 2 && ranks.moved_bytes() >= 64 * 64 * sizeof(float); };
    while (step < 400 && !plain()) {
      set(ranks, step++, gradient);
      ranks.step();
    }
    REQUIRE(plain());
    SimulatedHook again(name, with, {64, 64});
    for (int r = 0; r < 2; r++) {
      Bytes state;
      REQUIRE(ranks.hook(r).save(&state).ok());
      REQUIRE(again.hook(r).load(state).ok());
    }
    for (const uint64_t end = step + 100; step < end; step++) {
      set(ranks, step, gradient);
      set(again, step, gradient);
      ranks.step();
      again.step();
      REQUIRE(ranks.values(0) == again.values(0));
      REQUIRE(ranks.moved_bytes() == again.moved_bytes());
    }
  }
}

TEST_CASE("rescue=1 without error feedback is refused") {
  std::shared_ptr<Hook> hook;
  for (const auto& [name, options] :
       {Named{"topk", "feedback=0 rescue=1"}, Named{"powersgd", "feedback=off rescue=1"},
        Named{"int8", "feedback=0 rescue=1"}}) {
    const Status status = built_in(name, options, &hook);
    CHECK(status.code() == Code::kArg);
    CHECK(has(status.text(), "rescue=1 needs the error memory: turn error feedback on"));
  }
}

TEST_CASE("all ranks send a bucket uncompressed if its error memory keeps growing on one of them") {
  const Model model({{"steady", {10}}, {"grows", {64, 64}}});
  struct Way {
    const char* cast;
    uint64_t flags;
  };
  for (const auto& [cast, flags] :
       {Way{"", 0}, Way{"bf16", 0}, Way{"", WEFT_REDUCER_SHARDED}, Way{"bf16", WEFT_REDUCER_SHARDED}}) {
    INFO(cast << " " << flags);
    uint64_t sent[2] = {};
    for (const bool rescues : {false, true}) {
      Training training;
      training.ranks = 3;
      training.steps = 150;
      training.rig.limits = {0};
      training.rig.flags = flags;
      training.value = [](uint64_t step, int rank, size_t param, uint64_t element) {
        if (param == 0 || rank == 1) return dense(step, rank, element);
        return element == 5 ? 1.0 : 0.0;
      };
      training.at_end = [&](Reducer& reducer) {
        weft_reducer_stats stats{};
        reducer.query(&stats);
        sent[rescues] = stats.sent_bytes;
      };
      const MakeHook make = [&](std::shared_ptr<Hook>* hook) {
        std::shared_ptr<Hook> inner;
        WEFT_TRY(built_in("topk", rescues ? "ratio=0.001 rescue=1" : "ratio=0.001", &inner));
        if (cast[0] != 0) return built_in(cast, "", hook, std::move(inner));
        *hook = std::move(inner);
        return Status();
      };
      const Results results = train(model, make, training);
      CHECK((flags != 0 || replicas_identical(results)));
    }
    CHECK(sent[1] > sent[0] + 10 * 64 * 64);
  }
}

TEST_CASE(
    "a reducer reports the bucket with the largest error memory, and warns once when it keeps growing") {
  std::mutex mutex;
  std::vector<std::string> lines;
  ContextOptions options;
  options.log_sink = [&](LogLevel, const char* line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  };
  options.log_level = LogLevel::kWarn;
  options.host = &host_ops();
  std::shared_ptr<Context> context;
  REQUIRE(Context::create(options, &context).ok());
  SystemClock clock;
  ThreadGroup group{1, clock};
  std::shared_ptr<Comm> comm;
  REQUIRE(form(group, 0, context, collectives_of(loopback::backend()), {}, &comm).ok());
  {
    const Model model({{"few", {40}}, {"more", {50}}, {"grows", {64, 64}}});
    std::shared_ptr<Hook> hook;
    REQUIRE(built_in("topk", "ratio=0.001", &hook).ok());
    std::unique_ptr<Reducer> reducer;
    REQUIRE(make_reducer(comm, model, hook, &reducer, {.limits = {0}}).ok());
    Gradients gradients(model);
    uint64_t first = 0;
    weft_reducer_stats stats{};
    for (uint64_t step = 0; step < 200; step++) {
      for (size_t i = 0; i < model.size(); i++) {
        for (uint64_t k = 0; k < model.count(i); k++) {
          store_as(Dtype::kF32, i == 2 ? dense(step, 0, k) : k == 3, gradients[i] + gradients.at(i, k));
        }
      }
      REQUIRE(train_step(*reducer, gradients, step, 1).ok());
      reducer->query(&stats);
      const std::lock_guard lock(mutex);
      if (first == 0 && !lines.empty()) first = step;
    }
    weft_bucket_info bucket{};
    uint64_t param = 0;
    REQUIRE(reducer->bucket(stats.hook_error_bucket, &bucket, &param, 1).ok());
    CHECK(param == 2);
    CHECK(stats.hook_error > 10);
    const std::string report = reducer->report();
    CHECK(has(report, cat("\"hook_error_bucket\": ", stats.hook_error_bucket)));
    CHECK(has(report, "\"hook_error\": 0.0"));  // the other buckets
    const std::lock_guard lock(mutex);
    REQUIRE(lines.size() == 1);
    CHECK(has(lines[0], cat("rank 0, step ", first,
                            ": the error memory of hook 'topk(ratio=0.001 feedback=1 "
                            "rescue=0)' keeps growing in bucket ",
                            stats.hook_error_bucket, " [")));
    CHECK(has(lines[0], "grows"));
    CHECK(has(lines[0], " times as large as the gradients"));
  }
  CHECK(comm->close().ok());
  comm.reset();
  CHECK(context->close().ok());
}

}  // namespace unit_hooks_error_memory
