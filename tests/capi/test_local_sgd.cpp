// Local SGD through the public header: the hook post_local_sgd, hooks over a communicator of their own, and
// model averaging, compared with plain arithmetic.
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_local_sgd {

namespace {

using weft_test::Rank;

// Collects failures from the ranks, which are threads.
class Report {
 public:
  void expect(bool ok, const std::string& what) {
    if (ok) return;
    const std::lock_guard lock(mutex_);
    text_ += what + "; ";
  }
  const std::string& text() const { return text_; }

 private:
  std::mutex mutex_;
  std::string text_;
};

bool has(const char* text, const char* part) {
  return std::strstr(text, part) != nullptr;
}

// A model of two parameters whose gradients are computed by a function.
struct Model {
  static constexpr int64_t kRows = 24, kColumns = 31;
  int64_t shape[2] = {kRows, kColumns};
  int64_t bias_shape[1] = {kColumns};
  std::vector<float> weight = std::vector<float>(kRows * kColumns), bias = std::vector<float>(kColumns);
  weft_param params[2] = {WEFT_PARAM_INIT, WEFT_PARAM_INIT};

  Model() {
    params[0].name = "weight";
    params[0].ndim = 2;
    params[0].shape = shape;
    params[0].parameter = weight.data();
    params[1].name = "bias";
    params[1].ndim = 1;
    params[1].shape = bias_shape;
    params[1].parameter = bias.data();
    for (weft_param& p : params) p.dtype = WEFT_DTYPE_F32;
  }
};

float small_integer(int step, int rank, size_t i) {
  return static_cast<float>(
      static_cast<int>((static_cast<size_t>(step) * 7 + static_cast<size_t>(rank) * 3 + i) % 17) - 8);
}

struct Trained {
  weft_status created = WEFT_OK;
  std::string error;
  std::vector<std::vector<float>> steps;  // of each step: the results of the weight and of the bias
};

// Creates a hook and a reducer over comm, and runs some steps.
Trained train(weft_context* context, weft_comm* comm, weft_comm* hook_comm, const char* name,
              const char* options, int steps, int rank) {
  Trained out;
  Model model;
  weft_error error = WEFT_ERROR_INIT;
  weft_hook_params params = WEFT_HOOK_PARAMS_INIT;
  params.options = options;
  params.comm = hook_comm;
  params.error = &error;
  weft_hook* hook = nullptr;
  weft_reducer* reducer = nullptr;
  out.created = weft_hook_create(context, name, &params, &hook);
  if (out.created == WEFT_OK) {
    weft_reducer_options reducer_options = WEFT_REDUCER_OPTIONS_INIT;
    reducer_options.params = model.params;
    reducer_options.param_count = 2;
    reducer_options.hook = hook;
    const uint64_t limit = 64;
    reducer_options.bucket_limits = &limit;
    reducer_options.bucket_limit_count = 1;
    out.created = weft_reducer_create(comm, &reducer_options, &reducer, &error);
  }
  out.error = error.text;
  for (int step = 0; step < steps && reducer != nullptr; step++) {
    std::vector<float> gradients[2] = {model.weight, model.bias};
    for (size_t p = 0; p < 2; p++) {
      for (size_t i = 0; i < gradients[p].size(); i++) gradients[p][i] = small_integer(step, rank, i + p);
    }
    weft_status status = weft_reducer_begin(reducer, nullptr);
    for (uint64_t p = 0; p < 2 && status == WEFT_OK; p++) {
      status = weft_reducer_ready(reducer, p, gradients[p].data(), nullptr);
    }
    if (status == WEFT_OK) status = weft_reducer_finish(reducer, nullptr);
    if (status != WEFT_OK) {
      weft_reducer_error(reducer, &error);
      out.error = error.text;
      break;
    }
    gradients[0].insert(gradients[0].end(), gradients[1].begin(), gradients[1].end());
    if (out.steps.size() < 1000) out.steps.push_back(gradients[0]);
  }
  weft_reducer_destroy(&reducer);
  weft_hook_destroy(&hook);
  return out;
}

// Returns a communicator of the ranks 2 i and 2 i + 1.
weft_comm* pair_of(Rank& r, Report* report) {
  weft_comm* pair = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  report->expect(weft_comm_split(r.comm, r.rank / 2, 0, &pair, &error) == WEFT_OK, error.text);
  return pair;
}

void run(int ranks, Report* report, const std::function<void(Rank&)>& body) {
  const std::string error = weft_test::run("loopback", ranks, WEFT_PROGRESS_THREAD, body);
  CHECK(error == "");
  CHECK(report->text() == "");
}

}  // namespace

TEST_CASE("post_local_sgd gives exact means over all ranks, then over its communicator, then none") {
  Report report;
  run(4, &report, [&](Rank& r) {
    weft_comm* pair = pair_of(r, &report);
    for (const char* const options : {"start=40", "start=40 local=none"}) {
      const bool none = std::strstr(options, "none") != nullptr;
      const Trained trained =
          train(r.context, r.comm, none ? nullptr : pair, "post_local_sgd", options, 100, r.rank);
      report.expect(trained.steps.size() == 100, trained.error);
      for (int step = 0; step < static_cast<int>(trained.steps.size()); step++) {
        const int first = step < 40 ? 0 : none ? r.rank : r.rank / 2 * 2;
        const int count = step < 40 ? 4 : none ? 1 : 2;
        const std::vector<float>& got = trained.steps[static_cast<size_t>(step)];
        bool exact = true;
        for (size_t i = 0; i < got.size(); i++) {
          const size_t element =
              i < Model::kRows * Model::kColumns ? i : i - Model::kRows * Model::kColumns + 1;
          float sum = 0;
          for (int rank = first; rank < first + count; rank++) sum += small_integer(step, rank, element);
          exact &= got[i] == sum / static_cast<float>(count);
        }
        report.expect(exact, std::string(options) + ", step " + std::to_string(step));
      }
    }
    weft_comm_destroy(&pair);
  });
}

TEST_CASE("a hook over its own communicator gives the results of a reducer over that communicator") {
  constexpr const char* kHooks[][2] = {{"allreduce", ""},     {"fp16", ""},
                                       {"bf16", "order=ddp"}, {"int8", ""},
                                       {"onebit", ""},        {"topk", "ratio=0.1"},
                                       {"quantize", ""},      {"powersgd", "start=2"},
                                       {"noop", ""},          {"batched_powersgd", "start=2 rank=1"}};
  Report report;
  run(4, &report, [&](Rank& r) {
    weft_comm* pair = pair_of(r, &report);
    for (const auto& hook : kHooks) {
      const Trained own = train(r.context, r.comm, pair, hook[0], hook[1], 6, r.rank);
      const Trained plain = train(r.context, pair, nullptr, hook[0], hook[1], 6, r.rank);
      report.expect(own.steps.size() == 6, own.error);
      report.expect(own.steps == plain.steps, std::string(hook[0]) + " differs");
    }
    weft_comm_destroy(&pair);
  });
}

TEST_CASE("an invalid communicator for a hook is refused with the reason") {
  Report report;
  run(2, &report, [&](Rank& r) {
    const Trained none = train(r.context, r.comm, nullptr, "post_local_sgd", "", 1, r.rank);
    report.expect(none.created == WEFT_ERR_ARG &&
                      has(none.error.c_str(), "set weft_hook_params.comm, or use local=none"),
                  none.error);
    // Only one rank passes a communicator for the hook.
    const Trained differ =
        train(r.context, r.comm, r.rank == 0 ? r.comm : nullptr, "allreduce", "", 1, r.rank);
    report.expect(
        differ.created == WEFT_ERR_MISMATCH && has(differ.error.c_str(), "over a communicator of its own"),
        differ.error);
    weft_context* other = nullptr;
    weft_context_create(nullptr, &other, nullptr);
    const Trained foreign = train(other, r.comm, r.comm, "allreduce", "", 1, r.rank);
    report.expect(foreign.created == WEFT_ERR_ARG && has(foreign.error.c_str(), "another context"),
                  foreign.error);
    weft_context_destroy(&other);
  });
}

TEST_CASE("a failure of a hook's communicator fails the step on every rank") {
  Report report;
  std::atomic<int> over{0};
  run(4, &report, [&](Rank& r) {
    weft_comm* pair = pair_of(r, &report);
    report.expect(train(r.context, r.comm, pair, "allreduce", "", 2, r.rank).steps.size() == 2, "two steps");
    // The pairs do not depend on each other until one of them fails.
    report.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK, "barrier");
    if (r.rank == 3) weft_comm_abort(pair, "enough");
    const Trained failed = train(r.context, r.comm, pair, "allreduce", "", 10'000'000, r.rank);
    report.expect(has(failed.error.c_str(), "enough"), "failed: " + failed.error);
    // All ranks wait for each other first: a rank that leaves its pair earlier would replace the error
    // "enough" on the other rank.
    for (over++; over < 4;) std::this_thread::yield();
    weft_comm_destroy(&pair);
  });
}

namespace {

weft_averager* averager(weft_comm* comm, const weft_param* params, uint64_t count,
                        std::vector<weft_average_level> levels, uint64_t warmup, weft_error* error,
                        uint64_t chunk_bytes = 0) {
  for (weft_average_level& level : levels) level.struct_size = sizeof level;
  weft_averager_options options = WEFT_AVERAGER_OPTIONS_INIT;
  options.params = params;
  options.param_count = count;
  options.levels = levels.data();
  options.level_count = levels.size();
  options.warmup = warmup;
  options.chunk_bytes = chunk_bytes;
  weft_averager* made = nullptr;
  weft_averager_create(comm, &options, &made, error);
  return made;
}

}  // namespace

TEST_CASE("models are averaged every so many steps after the warm-up, whatever their dtypes and strides") {
  Report report;
  run(3, &report, [&](Rank& r) {
    std::vector<float> dense(1000), strided(40), large(100'000);
    std::vector<double> wide(33);
    weft_param params[5] = {WEFT_PARAM_INIT, WEFT_PARAM_INIT, WEFT_PARAM_INIT, WEFT_PARAM_INIT,
                            WEFT_PARAM_INIT};
    const int64_t shapes[5][2] = {{1000, 1}, {10, 2}, {100, 1000}, {33, 1}, {0, 4}};
    const int64_t strides[2] = {4, 1};
    const char* const names[5] = {"dense", "strided", "large", "wide", "none"};
    void* const values[5] = {dense.data(), strided.data(), large.data(), wide.data(), nullptr};
    for (size_t p = 0; p < 5; p++) {
      params[p].name = names[p];
      params[p].dtype = p == 3 ? WEFT_DTYPE_F64 : WEFT_DTYPE_F32;
      params[p].ndim = 2;
      params[p].shape = shapes[p];
      params[p].parameter = values[p];
    }
    params[1].strides = strides;
    for (const uint64_t chunk_bytes : {uint64_t{0}, uint64_t{100}}) {
      weft_error error = WEFT_ERROR_INIT;
      weft_averager* average = averager(r.comm, params, 5, {{0, 3, nullptr}}, 4, &error, chunk_bytes);
      report.expect(average != nullptr, error.text);
      for (uint64_t step = 0; step < 12 && average != nullptr; step++) {
        const auto value = [&](int rank, size_t i) {
          return static_cast<float>(rank) + static_cast<float>(i % 50) + static_cast<float>(step);
        };
        const auto fill = [&](auto& v) {
          for (size_t i = 0; i < v.size(); i++) v[i] = value(r.rank, i);
        };
        fill(dense), fill(strided), fill(large), fill(wide);
        uint64_t period = 77;
        report.expect(weft_averager_step(average, &period, &error) == WEFT_OK, error.text);
        const bool averages = step >= 4 && (step - 4) % 3 == 0;
        report.expect(period == (averages ? 3u : 0u), "period in step " + std::to_string(step));
        const auto right = [&](const auto& v, bool touched, size_t i) {
          return v[i] == (averages && touched ? value(1, i) : value(r.rank, i));
        };
        bool exact = true;
        for (size_t i = 0; i < dense.size(); i++) exact &= right(dense, true, i);
        for (size_t i = 0; i < large.size(); i++) exact &= right(large, true, i);
        for (size_t i = 0; i < wide.size(); i++) exact &= right(wide, true, i);
        for (size_t i = 0; i < strided.size(); i++) exact &= right(strided, i % 4 < 2, i);
        report.expect(exact, "values in step " + std::to_string(step));
      }
      weft_averager_destroy(&average);
    }
  });
}

TEST_CASE("with several levels, the longest period that divides the step selects the average") {
  Report report;
  run(4, &report, [&](Rank& r) {
    weft_comm* pair = pair_of(r, &report);
    Model model;
    weft_error error = WEFT_ERROR_INIT;
    weft_averager* average = averager(r.comm, model.params, 2, {{0, 2, pair}, {0, 6, nullptr}}, 1, &error);
    report.expect(average != nullptr, error.text);
    std::vector<double> expected(4);  // every rank's value, in f64
    for (int rank = 0; rank < 4; rank++) expected[static_cast<size_t>(rank)] = rank * rank;
    model.weight[5] = static_cast<float>(r.rank * r.rank);
    for (uint64_t step = 0; step < 20 && average != nullptr; step++) {
      for (size_t rank = 0; rank < 4; rank++) expected[rank] += static_cast<double>(rank + 1);
      model.weight[5] += static_cast<float>(r.rank + 1);
      uint64_t wanted = 0;
      if (step >= 1 && (step - 1) % 6 == 0) {
        wanted = 6;
        const double mean = (expected[0] + expected[1] + expected[2] + expected[3]) / 4;
        expected.assign(4, mean);
      } else if (step >= 1 && (step - 1) % 2 == 0) {
        wanted = 2;
        for (const size_t first : {size_t{0}, size_t{2}}) {
          expected[first] = expected[first + 1] = (expected[first] + expected[first + 1]) / 2;
        }
      }
      uint64_t period = 0;
      report.expect(weft_averager_step(average, &period, &error) == WEFT_OK, error.text);
      report.expect(period == wanted, "the level of step " + std::to_string(step));
      report.expect(std::fabs(model.weight[5] - expected[static_cast<size_t>(r.rank)]) < 1e-4,
                    "the value of step " + std::to_string(step));
    }
    weft_averager_destroy(&average);
    weft_comm_destroy(&pair);
  });
}

TEST_CASE("different averaging options and invalid averagers are refused with the reason") {
  Report report;
  run(2, &report, [&](Rank& r) {
    Model model;
    weft_error error = WEFT_ERROR_INIT;
    const auto refused = [&](std::vector<weft_average_level> levels, uint64_t warmup, int code,
                             const char* text) {
      weft_averager* made = averager(r.comm, model.params, 2, std::move(levels), warmup, &error);
      report.expect(made == nullptr && error.code == code && has(error.text, text), error.text);
      weft_averager_destroy(&made);
    };
    const auto own = static_cast<uint64_t>(r.rank);
    refused({{0, 2 + own, nullptr}}, 0, WEFT_ERR_MISMATCH,
            "the period of level 0 is 3 on rank 1 and 2 on rank 0");
    refused({{0, 2, nullptr}}, own, WEFT_ERR_MISMATCH,
            "weft_averager_options.warmup is 1 on rank 1 and 0 on rank 0");
    refused({{0, 0, nullptr}}, 0, WEFT_ERR_ARG, "the period of level 0 is 0");
    refused({{0, 4, nullptr}, {0, 4, nullptr}}, 0, WEFT_ERR_ARG, "do not ascend");
    refused({}, 0, WEFT_ERR_ARG, "at least one level");
    model.params[1].parameter = nullptr;
    refused({{0, 4, nullptr}}, 0, WEFT_ERR_ARG,
            "parameter 1 ('bias'): its value (weft_param.parameter) is NULL");
    if (r.rank == 1) model.params[1].parameter = model.bias.data();
    refused({{0, 4, nullptr}}, 0, r.rank == 0 ? WEFT_ERR_ARG : WEFT_ERR_MISMATCH, "is NULL");
    report.expect(weft_averager_step(nullptr, nullptr, &error) == WEFT_ERR_ARG, "a NULL averager");
    weft_averager* none = nullptr;
    report.expect(weft_averager_destroy(&none) == WEFT_OK, "destroy of none");
  });
}

TEST_CASE("post_local_sgd with an averager is local SGD as published") {
  // Each rank minimises its own quadratic, |w - target|^2 / 2. The reference does the same in f64.
  constexpr int kSteps = 60, kStart = 10;
  constexpr double kRate = 0.125;
  Report report;
  run(4, &report, [&](Rank& r) {
    weft_comm* pair = pair_of(r, &report);
    Model model;
    weft_error error = WEFT_ERROR_INIT;
    weft_hook_params params = WEFT_HOOK_PARAMS_INIT;
    params.options = "start=10";
    params.comm = pair;
    weft_hook* hook = nullptr;
    report.expect(weft_hook_create(r.context, "post_local_sgd", &params, &hook) == WEFT_OK, "hook");
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = model.params;
    options.param_count = 2;
    options.hook = hook;
    weft_reducer* reducer = nullptr;
    report.expect(weft_reducer_create(r.comm, &options, &reducer, &error) == WEFT_OK, error.text);
    weft_averager* average = averager(r.comm, model.params, 2, {{0, 8, nullptr}}, kStart, &error);
    report.expect(average != nullptr, error.text);
    const auto target = [](size_t rank, size_t i) { return std::sin(static_cast<double>(rank * 31 + i)); };
    std::vector<std::vector<double>> w(4, std::vector<double>(model.bias.size()));
    for (int step = 0; step < kSteps && reducer != nullptr && average != nullptr; step++) {
      std::vector<float> gradient[2] = {model.weight, model.bias};
      for (size_t i = 0; i < model.bias.size(); i++) {
        gradient[1][i] -= static_cast<float>(target(static_cast<size_t>(r.rank), i));
      }
      weft_reducer_begin(reducer, nullptr);
      for (uint64_t p = 0; p < 2; p++) weft_reducer_ready(reducer, p, gradient[p].data(), nullptr);
      report.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK, "finish");
      for (size_t i = 0; i < model.bias.size(); i++)
        model.bias[i] -= static_cast<float>(kRate) * gradient[1][i];
      report.expect(weft_averager_step(average, nullptr, &error) == WEFT_OK, error.text);
      for (size_t i = 0; i < model.bias.size(); i++) {
        double g[4], mean = 0;
        for (size_t k = 0; k < 4; k++) g[k] = w[k][i] - target(k, i);
        for (size_t k = 0; k < 4; k++) {
          const size_t partner = k ^ 1;
          w[k][i] -= kRate * (step < kStart ? (g[0] + g[1] + g[2] + g[3]) / 4 : (g[k] + g[partner]) / 2);
          mean += w[k][i] / 4;
        }
        for (size_t k = 0; k < 4 && step >= kStart && (step - kStart) % 8 == 0; k++) w[k][i] = mean;
      }
    }
    double difference = 0;
    for (size_t i = 0; i < model.bias.size(); i++) {
      difference = std::max(difference, std::fabs(model.bias[i] - w[static_cast<size_t>(r.rank)][i]));
    }
    report.expect(difference < 1e-5, "the weights differ by " + std::to_string(difference));
    weft_averager_destroy(&average);
    weft_reducer_destroy(&reducer);
    weft_hook_destroy(&hook);
    weft_comm_destroy(&pair);
  });
}

TEST_CASE("an averager cannot be created while a group is open") {
  Report report;
  run(1, &report, [&](Rank& r) {
    std::vector<float> value(4);
    const int64_t shape[1] = {4};
    weft_param param = WEFT_PARAM_INIT;
    param.name = "value";
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = 1;
    param.shape = shape;
    param.parameter = value.data();
    weft_error error = WEFT_ERROR_INIT;
    report.expect(weft_group_begin(r.comm) == WEFT_OK, "begin");
    weft_averager* average = averager(r.comm, &param, 1, {{0, 3, nullptr}}, 0, &error);
    report.expect(average == nullptr && has(error.text, "a group is open"), error.text);
    report.expect(weft_averager_destroy(&average) == WEFT_OK, "destroy");
    report.expect(weft_group_end(r.comm, nullptr) == WEFT_OK, "end");
    average = averager(r.comm, &param, 1, {{0, 3, nullptr}}, 0, &error);
    report.expect(average != nullptr, error.text);
    report.expect(weft_averager_destroy(&average) == WEFT_OK, "destroy");
  });
  CHECK(report.text() == "");
}

}  // namespace capi_local_sgd
