// powersgd and batched_powersgd, compared with the published algorithm in f64, and their guarantees for
// zeros, NaN, uncompressed steps and drift.
#include <bit>
#include <cstdlib>

#include "hook_simulation.h"
#include "powersgd_reference.h"

namespace unit_hooks_powersgd {

using namespace weft;
using namespace weft::test;

namespace {

MakeHook made(const std::string& name, const std::string& options = "") {
  return [=](std::shared_ptr<Hook>* hook) { return built_in(name, options, hook); };
}

// Gradients of rank 2 and some noise, so that few factors approximate them well.
double low_rank(uint64_t step, int rank, size_t param, uint64_t element) {
  const auto i = static_cast<double>(element / 41), j = static_cast<double>(element % 41);
  const double s = 1 + 0.1 * static_cast<double>(step);
  return s * std::sin(i + rank) * std::cos(0.3 * j) + 0.5 * std::cos(2 * i) * std::sin(j + s) +
         0.02 * noise(step, rank, param, element);
}

}  // namespace

TEST_CASE("powersgd is the published algorithm, from the first compressed step on") {
  constexpr size_t kRows = 37, kColumns = 41;
  const Model model({{"fc", {kRows, kColumns}}, {"bias", {kColumns}}});
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& [rank, epsilon] :
         {std::pair{1, 0.0}, {2, 0.0}, {4, 0.0}, {-1, 0.0}, {-3, 0.0}, {2, 0.5}}) {
      const bool alternates = rank < 0;
      INFO(ranks << " ranks, rank " << rank << ", epsilon " << epsilon);
      Training training;
      training.ranks = ranks;
      training.steps = 6;
      training.value = low_rank;
      // Both start from the same Q, which is loaded into the hook as the state saved after its second step.
      PowerSgdReference reference{kRows, kColumns, {}, {}, {}, epsilon};
      ByteWriter state;
      state.put(uint32_t{2}).put(uint64_t{2}).put(int32_t{-1}).put(int32_t{0}).put(uint32_t{1});
      state.put_string("q")
          .put(uint64_t{1})
          .put_string("fc")
          .put(kColumns * static_cast<uint64_t>(std::abs(rank)));
      for (int k = 0; k < std::abs(rank); k++) {
        reference.q.emplace_back();
        for (size_t j = 0; j < kColumns; j++) {
          const auto value = static_cast<float>(noise(99, k, 0, j));
          reference.q.back().push_back(double{value});
          state.put(std::bit_cast<uint32_t>(value));
        }
      }
      const std::string options = cat("start=2 rank=", std::abs(rank), alternates ? " alternate=1" : "",
                                      epsilon > 0 ? cat(" epsilon=", epsilon) : "");
      const Results results = train(
          model,
          [&](std::shared_ptr<Hook>* hook) {
            WEFT_TRY(built_in("powersgd", options, hook));
            return (*hook)->load(state.bytes());
          },
          training);
      CHECK(replicas_identical(results));
      for (uint64_t step = 0; step < training.steps; step++) {
        std::vector<std::vector<double>> gradients(static_cast<size_t>(ranks));
        for (int r = 0; r < ranks; r++) {
          for (uint64_t e = 0; e < kRows * kColumns; e++) {
            gradients[static_cast<size_t>(r)].push_back(low_rank(step, r, 0, e));
          }
        }
        const std::vector<double> expected =
            alternates ? reference.alternating_step(gradients, step % 2 == 0) : reference.step(gradients);
        const auto& got = results[step][0];
        double difference = 0, bias = 0;
        for (size_t e = 0; e < expected.size(); e++) {
          difference = std::max(difference, std::fabs(got[0][e] - expected[e]));
        }
        for (size_t e = 0; e < kColumns; e++) {
          bias = std::max(bias, std::fabs(got[1][e] - mean_of(training, step, 1, e)));
        }
        CHECK(difference < 1e-4);
        CHECK(bias < 1e-6);
      }
    }
  }
}

TEST_CASE("powersgd sends factors of matrices and all other gradients uncompressed") {
  const Model model(layers());
  for (const char* const name : {"powersgd", "batched_powersgd"}) {
    INFO(name);
    Training training;
    training.ranks = 2;
    training.steps = 6;
    training.at_end = [&](Reducer& reducer) {
      weft_reducer_stats stats{};
      reducer.query(&stats);
      CHECK(stats.sent_bytes < stats.plain_bytes * 3 / 4);  // two of the steps are uncompressed
      CHECK(stats.sent_bytes > stats.plain_bytes / 3);
      CHECK(stats.hook_bytes > (37 * 41 + 1310) * sizeof(float));
    };
    const Results results = train(model, made(name, "start=2 rank=1"), training);
    CHECK(replicas_identical(results));
    CHECK(largest_error(training, results, 1) < 1e-6);
    CHECK(largest_error(training, results, 2) > 0.01);
  }
}

TEST_CASE("an alternating powersgd reduces one factor a step") {
  const Model model({{"fc", {40, 60}}, {"out", {60, 20}}, {"bias", {20}}});
  const auto values = [](uint64_t step) { return step % 2 == 0 ? 100 * 2 + 20 : 80 * 2 + 20; };
  for (const uint64_t steps : {3u, 4u}) {
    Training training;
    training.steps = steps;
    training.rig.limits = {1 << 20};
    uint64_t expected = 2 * (40 * 60 + 60 * 20 + 20);
    for (uint64_t step = 2; step < steps; step++) expected += static_cast<uint64_t>(values(step));
    training.at_end = [&](Reducer& reducer) {
      weft_reducer_stats stats{};
      reducer.query(&stats);
      CHECK(stats.sent_bytes == expected * sizeof(float));  // each of two ranks sends as much as it has
    };
    train(model, made("powersgd", "start=2 rank=2 min_rate=1 alternate=1"), training);
  }
}

TEST_CASE("an alternating powersgd finds a matrix of its rank") {
  const Model model({{"fc", {37, 41}}});
  Training training;
  training.ranks = 3;
  training.steps = 12;
  training.value = [](uint64_t, int rank, size_t, uint64_t element) {
    return (1.0 + rank) * std::sin(static_cast<double>(element / 41)) *
           std::cos(0.3 * static_cast<double>(element % 41));
  };
  const Results results = train(model, made("powersgd", "start=2 rank=1 alternate=1 feedback=off"), training);
  CHECK(replicas_identical(results));
  CHECK(largest_error(training, results, 11) < 1e-4);
}

TEST_CASE(
    "a compressed bucket takes two collectives, one behind the other, and an alternating one takes one") {
  for (const char* const name : {"powersgd", "batched_powersgd"}) {
    for (const bool alternates : {false, true}) {
      INFO(name << ", alternates " << alternates);
      SimulatedHook ranks(name, cat("start=2 rank=2", alternates ? " alternate=1" : ""), {40, 30});
      for (uint64_t step = 0; step < 6; step++) {
        for (int r = 0; r < SimulatedHook::kRanks; r++) {
          for (uint64_t k = 0; k < 1200; k++) ranks.values(r)[k] = static_cast<float>(noise(step, r, 0, k));
        }
        CHECK(ranks.step() == (step < 2 || alternates ? 1 : 2));
      }
    }
  }
}

namespace {

// The host's operations, which also record how many matrices were processed together.
std::atomic<uint64_t> most_together{0};
const DeviceOps& noting_ops() {
  static const DeviceOps ops = [] {
    DeviceOps noting = host_ops();
    noting.low_rank = [](const LowRankArgs& args) {
      if (args.batch > most_together) most_together = args.batch;
      host_ops().low_rank(args);
    };
    return noting;
  }();
  return ops;
}

}  // namespace

TEST_CASE("matrices of equal shape are processed together, with the same result") {
  const Model model({{"a", {20, 30}}, {"b", {33, 20}}, {"c", {20, 30}}, {"d", {30}}, {"e", {20, 30}}});
  Training training;
  training.ranks = 3;
  training.steps = 5;
  training.rig.limits = {1 << 20};
  for (const char* const more : {"", " alternate=1", " feedback=ddp"}) {
    const std::string options = std::string("start=2 rank=3 min_rate=1") + more;
    const Results one = train(model, made("powersgd", options), training);
    most_together = 0;
    const Results batched = train(
        model,
        [&](std::shared_ptr<Hook>* hook) {
          return Registry::make_hook("powersgd", {options + " batch=1", nullptr, noting_ops()}, hook);
        },
        training);
    CHECK(same_results(one, batched));
    CHECK(most_together == 3);
  }
}

TEST_CASE("powersgd logs its savings at the chosen interval") {
  std::mutex mutex;
  std::vector<std::string> lines;
  const auto sink = [&](LogLevel, const char* line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  };
  const auto log = std::make_shared<Log>(sink, LogLevel::kInfo);
  const Model model({{"fc", {40, 30}}, {"bias", {30}}});
  Training training;
  training.ranks = 1;
  training.steps = 8;
  train(
      model,
      [&](std::shared_ptr<Hook>* hook) {
        return built_in("powersgd", "start=2 statistics=3", hook, nullptr, nullptr, log);
      },
      training);
  REQUIRE(lines.size() == 2);
  CHECK(has(lines[0], "3 compressed steps had 3690 values and reduced 300"));
  CHECK(has(lines[1], "iteration 7: 6 compressed steps had 7380 values and reduced 600"));
}

TEST_CASE("a full rank loses nothing, nor does one beyond it") {
  const Model model({{"fc", {9, 30}}});
  Training training;
  training.ranks = 3;
  training.steps = 4;
  for (const char* const options : {"start=2 rank=9 min_rate=0.1", "start=2 rank=1000 min_rate=0.1"}) {
    const Results results = train(model, made("powersgd", options), training);
    for (uint64_t step = 0; step < 4; step++) CHECK(largest_error(training, results, step) < 1e-5);
  }
}

TEST_CASE("vectors are never compressed, whatever that would save") {
  const Model model({{"vector", {5000}}, {"scalar", {}}, {"column", {50, 1}}});
  Training training;
  training.ranks = 2;
  training.steps = 4;
  const Results results = train(model, made("powersgd", "start=2 min_rate=1e-6"), training);
  for (size_t i = 0; i < 2; i++) {
    for (uint64_t e = 0; e < model.count(i); e++) {
      REQUIRE(std::fabs(results[3][0][i][e] - mean_of(training, 3, i, e)) < 1e-6);
    }
  }
}

TEST_CASE("a seed determines powersgd's initial factors, the same on every run") {
  const Model model({{"fc", {37, 41}}});
  Training training;
  training.steps = 3;
  for (const char* const name : {"powersgd", "batched_powersgd"}) {
    const Results one = train(model, made(name, "start=2 rank=1 seed=1"), training);
    CHECK(same_results(one, train(model, made(name, "start=2 rank=1 seed=1"), training)));
    CHECK_FALSE(same_results(one, train(model, made(name, "start=2 rank=1 seed=2"), training)));
  }
}

TEST_CASE("zero matrices give zeros, dependent ones no NaN") {
  const Model model({{"zero", {40, 30}}, {"ones", {40, 30}}, {"square", {64, 64}}});
  for (const char* const name : {"powersgd", "batched_powersgd"}) {
    Training training;
    training.steps = 5;
    training.rig.limits = {0};
    training.value = [](uint64_t, int, size_t param, uint64_t) { return param == 0 ? 0.0 : 1.0; };
    const Results results = train(model, made(name, "start=2 rank=4"), training);
    for (const auto& step : results) {
      for (const double v : step[1][0]) REQUIRE(v == 0.0);
      for (const double v : step[1][1])
        REQUIRE(std::fabs(v - 1.0) < (std::string(name) == "powersgd" ? 1e-5 : 1));
    }
  }
}

TEST_CASE("infinities and NaN pass through powersgd, and are gone in the next step") {
  const Model model({{"fc", {40, 30}}, {"bias", {40}}});
  for (const char* const name : {"powersgd", "batched_powersgd"}) {
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      Training training;
      training.ranks = 2;
      training.steps = 6;
      training.value = [=](uint64_t step, int rank, size_t param, uint64_t element) {
        return step == 3 && rank == 1 && param == 0 && element == 77 ? bad
                                                                     : noise(step, rank, param, element);
      };
      const Results results = train(model, made(name, "start=2 rank=1"), training);
      CHECK(replicas_identical(results));
      CHECK_FALSE(std::isfinite(results[3][0][0][77]));
      for (const double v : results[4][0][0]) REQUIRE(std::isfinite(v));
    }
  }
}

TEST_CASE("powersgd keeps every dtype, and works inside a cast") {
  const Model model({{"half", {33, 40}, Dtype::kF16},
                     {"double", {50, 40}, Dtype::kF64},
                     {"turned", {30, 50}, Dtype::kF32, {1, 30}},
                     {"single", {20, 50}}});
  Training training;
  training.steps = 4;
  training.value = [](uint64_t, int, size_t, uint64_t element) { return element % 2 ? 0.5 : -0.25; };
  for (const char* const options :
       {"start=2 rank=2", "start=2 feedback=ddp rank=2", "start=1 feedback=off warm_start=0"}) {
    const Results results = train(model, made("powersgd", options), training);
    CHECK(replicas_identical(results));
    CHECK(largest_error(training, results, 3) < 1e-3);
  }
  training.ranks = 4;
  training.steps = 8;
  for (const char* const options : {"start=2", "start=2 feedback=ddp"}) {
    INFO(options);
    const Results inside = train(
        model,
        [options](std::shared_ptr<Hook>* hook) {
          std::shared_ptr<Hook> inner;
          WEFT_TRY(built_in("powersgd", options, &inner));
          return built_in("bf16", "", hook, std::move(inner));
        },
        training);
    CHECK(replicas_identical(inside));
    for (uint64_t step = 0; step < training.steps; step++) {
      CHECK(largest_error(training, inside, step) < 1e-2);
    }
  }
}

TEST_CASE("feedback refers to contributions, so accumulated micro-batches do not add up in it") {
  const Model model({{"fc", {33, 40}}});
  Training training;
  training.ranks = 3;
  training.steps = 10;
  training.micro_batches = 4;
  training.value = [](uint64_t, int, size_t, uint64_t element) { return element % 2 ? 2.0 : -1.0; };
  for (const char* const options : {"start=2", "start=2 feedback=ddp"}) {
    INFO(options);
    const Results results = train(model, made("powersgd", options), training);
    for (uint64_t step = 0; step < training.steps; step++) {
      REQUIRE(std::fabs(results[step][0][0][1] - 0.5) < 1e-4);
      REQUIRE(std::fabs(results[step][0][0][2] + 0.25) < 1e-4);
    }
  }
}

TEST_CASE("invalid options of powersgd are refused with the reason") {
  std::shared_ptr<Hook> hook;
  CHECK(has(built_in("powersgd", "rank=0", &hook).text(), "option rank is '0', must be an integer from 1"));
  // PyTorch's six configurations: errors and factors need uncompressed steps before, at least one.
  for (const std::string options : {"", " feedback=off", " warm_start=0", " feedback=ddp"}) {
    INFO(options);
    CHECK(has(built_in("powersgd", "start=0" + options, &hook).text(), "option start is '0'"));
    CHECK(has(built_in("powersgd", "start=1" + options, &hook).text(), "must be at least 2"));
  }
  CHECK(has(built_in("powersgd", "alternate=1 warm_start=0", &hook).text(), "needs warm_start=1"));
  CHECK(has(built_in("batched_powersgd", "batch=1", &hook).text(), "has no option 'batch'"));
  CHECK(has(built_in("powersgd", "min_rate=0", &hook).text(), "option min_rate is '0'"));
  CHECK(built_in("powersgd", "start=1 feedback=off warm_start=0", &hook).ok());
}

namespace {

// Returns the norm of rank 0's error memory after this many steps.
double error_norm(const std::string& feedback, uint64_t steps) {
  SimulatedHook ranks("powersgd", "start=2 rank=2 min_rate=0.5 feedback=" + feedback, {16, 16});
  for (uint64_t step = 0; step < steps; step++) {
    for (int r = 0; r < 2; r++) {
      for (uint64_t k = 0; k < 256; k++) {
        ranks.values(r)[k] = static_cast<float>(noise(0, r, 0, k) + noise(step, r, 1, k));
      }
    }
    ranks.step();
  }
  return ranks.error_norm();
}

}  // namespace

TEST_CASE("over 100,000 steps the error memory stays bounded; with DDP's feedback it grows", "[host]") {
  const double early = error_norm("local", 1000), late = error_norm("local", 100'000);
  CHECK(early > 1);
  CHECK(late < 2 * early);
  CHECK(error_norm("ddp", 20'000) > 5 * late);
  CHECK(error_norm("local alternate=1", 100'000) < 2 * error_norm("local alternate=1", 1000));
}

}  // namespace unit_hooks_powersgd
