// Lossy hooks with error feedback (int8, fp8, onebit, topk), and quantize, which has none. Results
// are compared with each hook's allowed loss, and with the mean over many steps.
#include "hooks_rig.h"

namespace unit_hooks_compressed {

using namespace weft;
using namespace weft::test;

namespace {

MakeHook made(const std::string& name, const std::string& options = "") {
  return [=](std::shared_ptr<Hook>* hook) { return built_in(name, options, hook); };
}

struct Named {
  const char* name;
  const char* options;
  double loss;  // the largest error of a step, for gradients within (-1, 1)
};

// Two roundings: of the sent values, and of the sum.
constexpr Named kHooks[] = {{"int8", "", 1.0 / 127},
                            {"int8", "rounding=stochastic seed=5", 2.0 / 127},
                            {"int8", "feedback=0", 1.0 / 127},
                            {"fp8", "", 1.0 / 15},
                            {"fp8", "format=e5m2", 1.0 / 7},
                            {"fp8", "rounding=stochastic", 2.0 / 15},
                            {"onebit", "", 2.0},
                            {"topk", "ratio=0.25", 1.0},
                            {"topk", "ratio=1", 1e-6},
                            {"quantize", "", 1.0 / 127},
                            {"quantize", "per=channel", 1.0 / 127}};

}  // namespace

TEST_CASE("a compressed mean is within what its codes can lose, the same bits on every rank") {
  const Model model(layers());
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Named& hook : kHooks) {
      INFO(hook.name << " " << hook.options << ", " << ranks << " ranks");
      Training training;
      training.ranks = ranks;
      training.steps = 3;
      const Results results = train(model, made(hook.name, hook.options), training);
      CHECK(replicas_identical(results));
      CHECK(largest_error(training, results, 0) < hook.loss);
    }
  }
}

TEST_CASE("codes are communicated as in an all-reduce, not as an all-gather of every rank's codes") {
  struct Sent {
    const char* name;
    const char* options;
    double times_less;  // than f32 in an all-reduce
  };
  constexpr Sent kSent[] = {{"int8", "", 4 / (1 + 4.0 / 256)},
                            {"fp8", "", 4 / (1 + 4.0 / 256)},
                            {"onebit", "", 4 / (1.0 / 8 + 4.0 / 64)},
                            {"topk", "ratio=0.01", 4 / (8 * 0.01)}};
  const Model model({{"a", {100'000}}});
  for (const int ranks : {2, 3, 4}) {
    for (const Sent& sent : kSent) {
      INFO(sent.name << ", " << ranks << " ranks");
      Training training;
      training.ranks = ranks;
      training.rig.limits = {1 << 20};
      training.at_end = [&](Reducer& reducer) {
        weft_reducer_stats stats{};
        reducer.query(&stats);
        const double times_less =
            static_cast<double>(stats.plain_bytes) / static_cast<double>(stats.sent_bytes);
        CHECK(times_less == Approx(sent.times_less).epsilon(0.02));
      };
      train(model, made(sent.name, sent.options), training);
    }
  }
}

TEST_CASE(
    "in a sharded reducer owners receive means that are encoded once, with feedback, for half the bytes") {
  constexpr uint64_t kSteps = 40;
  for (const int ranks : {1, 2, 3}) {
    for (const uint64_t limit : {uint64_t{0}, uint64_t{3000}, uint64_t{1} << 20}) {
      for (const Named& hook : kHooks) {
        if (std::string(hook.name) == "quantize") continue;
        INFO(hook.name << " " << hook.options << ", " << ranks << " ranks, limit " << limit);
        const Model model(layers());
        Training training;
        training.ranks = ranks;
        training.steps = kSteps;
        training.rig.flags = WEFT_REDUCER_SHARDED;
        training.rig.limits = {limit};
        training.value = [](uint64_t, int rank, size_t param, uint64_t element) {
          return noise(0, rank, param, element);
        };
        Results results = train(model, made(hook.name, hook.options), training);
        gather_owned(&results);
        CHECK(largest_error(training, results, 0) < hook.loss);
        if (std::string(hook.options) == "feedback=0") continue;
        double largest = 0;
        for (size_t i = 0; i < model.size(); i++) {
          for (uint64_t k = 0; k < model.count(i); k++) {
            double sum = 0;
            for (const auto& step : results) sum += step[0][i][k];
            largest = std::max(largest, std::fabs(sum / kSteps - mean_of(training, 0, i, k)));
          }
        }
        CHECK(largest < std::max(hook.loss * 6 / kSteps, 1e-6) + 0.15 * (hook.loss > 0.5));
      }
    }
  }
  uint64_t sent[2] = {};  // not sharded, sharded
  for (const uint64_t sharded : {0, 1}) {
    Training training;
    training.rig.limits = {1 << 20};
    training.rig.flags = sharded * WEFT_REDUCER_SHARDED;
    training.at_end = [&](Reducer& reducer) {
      weft_reducer_stats stats{};
      reducer.query(&stats);
      sent[sharded] = stats.sent_bytes;
    };
    train(Model({{"a", {100'000}}}), made("int8"), training);
  }
  CHECK(sent[1] * 2 == sent[0]);
}

TEST_CASE("in a sharded reducer compression keeps every dtype") {
  const Model model(mixed_params());
  for (const Named& hook : kHooks) {
    if (std::string(hook.name) == "quantize") continue;
    INFO(hook.name << " " << hook.options);
    Training training;
    training.rig.flags = WEFT_REDUCER_SHARDED;
    training.value = [](uint64_t step, int rank, size_t param, uint64_t element) {
      return value(step, rank, param, element) / 8;
    };
    Results results = train(model, made(hook.name, hook.options), training);
    gather_owned(&results);
    CHECK(largest_error(training, results, 0) < hook.loss + 0.01);
  }
}

TEST_CASE("compression keeps every dtype") {
  const Model model(mixed_params());
  for (const Named& hook : kHooks) {
    INFO(hook.name << " " << hook.options);
    Training training;
    training.ranks = 2;
    training.value = [](uint64_t step, int rank, size_t param, uint64_t element) {
      return value(step, rank, param, element) / 8;
    };
    const Results results = train(model, made(hook.name, hook.options), training);
    CHECK(replicas_identical(results));
    CHECK(largest_error(training, results, 0) < hook.loss + 0.01);
  }
}

TEST_CASE("with feedback the sum over many steps equals that of the gradients, without it does not") {
  const Model model({{"a", {31, 23}}, {"b", {7}}});
  constexpr uint64_t kSteps = 60;
  for (const Named& hook : kHooks) {
    if (std::string(hook.options) == "feedback=0" || std::string(hook.name) == "quantize") continue;
    INFO(hook.name << " " << hook.options);
    Training training;
    training.ranks = 3;
    training.steps = kSteps;
    // Different on every rank, the same in every step.
    training.value = [](uint64_t, int rank, size_t param, uint64_t element) {
      return noise(0, rank, param, element);
    };
    const Results results = train(model, made(hook.name, hook.options), training);
    double largest = 0;
    for (size_t i = 0; i < model.size(); i++) {
      for (uint64_t k = 0; k < model.count(i); k++) {
        double sum = 0;
        for (const auto& step : results) sum += step[0][i][k];
        largest = std::max(largest, std::fabs(sum / kSteps - mean_of(training, 0, i, k)));
      }
    }
    // The error memory stays bounded, so its share of the sum falls with the steps.
    CHECK(largest < std::max(hook.loss * 6 / kSteps, 1e-6) + 0.12 * (hook.loss > 0.5));
  }
}

TEST_CASE("pieces that are encoded one by one and their errors end up at their own elements") {
  const Model model({{"a", {70001}}, {"b", {5}}, {"c", {90000}}});  // slices of several pieces
  constexpr uint64_t kSteps = 8;
  for (const char* name : {"int8", "fp8"}) {
    for (const int ranks : {2, 3}) {
      INFO(name << ", " << ranks << " ranks");
      Training training;
      training.ranks = ranks;
      training.steps = kSteps;
      training.rig.limits = {uint64_t{1} << 30};
      training.value = [](uint64_t, int rank, size_t param, uint64_t element) {
        return noise(0, rank, param, element);
      };
      const Results results = train(model, made(name), training);
      CHECK(replicas_identical(results));
      const double loss = std::string(name) == "int8" ? 1.0 / 127 : 1.0 / 8;  // two roundings
      CHECK(largest_error(training, results, 0) < loss);
      double largest = 0;
      for (size_t i = 0; i < model.size(); i++) {
        for (uint64_t k = 0; k < model.count(i); k++) {
          double sum = 0;
          for (const auto& step : results) sum += step[0][i][k];
          largest = std::max(largest, std::fabs(sum / kSteps - mean_of(training, 0, i, k)));
        }
      }
      CHECK(largest < 2 * loss / kSteps);
    }
  }
}

TEST_CASE("zeros stay zeros, and sizes 0 and 1 work") {
  const Model model({{"a", {}}, {"none", {0}}, {"b", {300}}});
  for (const Named& hook : kHooks) {
    INFO(hook.name << " " << hook.options);
    Training training;
    training.ranks = 4;
    training.steps = 2;
    training.rig.limits = {0};
    training.value = [](uint64_t, int, size_t, uint64_t) { return 0.0; };
    const Results results = train(model, made(hook.name, hook.options), training);
    for (const auto& param : results[1][2]) {
      for (const double value : param) REQUIRE(value == 0.0);
    }
  }
}

TEST_CASE("infinities and NaN pass through compression, and are gone in the next step") {
  const Model model({{"a", {2000}}});
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const Named& hook : kHooks) {
      INFO(hook.name << " " << hook.options << " with " << bad);
      Training training;
      training.ranks = 2;
      training.steps = 3;
      training.value = [=](uint64_t step, int rank, size_t, uint64_t element) {
        return step == 1 && rank == 1 && element == 700 ? bad : 0.5;
      };
      const Results results = train(model, made(hook.name, hook.options), training);
      CHECK(replicas_identical(results));
      CHECK_FALSE(std::isfinite(results[1][0][0][700]));
      for (const double value : results[2][0][0]) REQUIRE(std::isfinite(value));
    }
  }
}

}  // namespace unit_hooks_compressed
