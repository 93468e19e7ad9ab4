// The reducer through the C ABI: a hand-written training loop, and its possible mistakes.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "capi/ranks.h"
#include "support/catch.h"

namespace capi_reducer {

using weft_test::Findings;
using weft_test::kBackends;
using weft_test::Rank;

namespace {

// A small model: five parameters of odd sizes, in buckets of at most 4 KiB.
struct Model {
  explicit Model(int32_t mode) {
    const int64_t sizes[] = {7, 1500, 333, 1, 2049};
    for (size_t i = 0; i < 5; i++) {
      shapes[i] = sizes[i];
      names[i] = "layer" + std::to_string(i) + ".weight";
      gradients[i].resize(static_cast<size_t>(sizes[i]));
    }
    for (size_t i = 0; i < 5; i++) {
      params[i] =
          weft_param{sizeof(weft_param), names[i].c_str(), WEFT_DTYPE_F32, 1, &shapes[i], nullptr, 0, 0, 0};
    }
    options.params = params;
    options.param_count = 5;
    options.mode = mode;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
  }

  uint64_t limit = 4096;
  int64_t shapes[5];
  std::string names[5];
  std::vector<float> gradients[5];
  weft_param params[5];
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
};

float value_of(int rank, int step, size_t param, size_t i) {
  return static_cast<float>((rank + 1) * (step + 2)) + static_cast<float>(param) * 0.25f +
         static_cast<float>(i % 17);
}

// Returns the mean over ranks, folded in rank order as Weft guarantees.
float mean(int size, int step, size_t param, size_t i) {
  float sum = value_of(0, step, param, i);
  for (int r = 1; r < size; r++) sum += value_of(r, step, param, i);
  return sum * static_cast<float>(1.0 / size);
}

}  // namespace

TEST_CASE("steps average every gradient on every rank, in copy and in view mode") {
  for (const char* backend : kBackends) {
    for (const int32_t mode : {WEFT_GRADIENT_COPY, WEFT_GRADIENT_VIEW}) {
      for (const int32_t progress : {WEFT_PROGRESS_THREAD, WEFT_PROGRESS_CALLER}) {
        for (const int size : {1, 2, 3}) {
          Findings findings;
          const std::string error = weft_test::run(backend, size, progress, [&](Rank& r) {
            Model model(mode);
            weft_reducer* reducer = nullptr;
            weft_error details = WEFT_ERROR_INIT;
            findings.expect(weft_reducer_create(r.comm, &model.options, &reducer, &details) == WEFT_OK);
            if (reducer == nullptr) return;
            uint32_t buckets = 0;
            findings.expect(weft_reducer_bucket_count(reducer, &buckets) == WEFT_OK && buckets >= 2);
            float* data[5];
            for (size_t p = 0; p < 5; p++) {
              void* view = model.gradients[p].data();
              if (mode == WEFT_GRADIENT_VIEW)
                findings.expect(weft_reducer_grad_view(reducer, p, &view) == WEFT_OK);
              data[p] = static_cast<float*>(view);
            }
            for (int step = 0; step < 3; step++) {
              findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
              for (size_t p = 5; p-- > 0;) {
                for (size_t i = 0; i < model.gradients[p].size(); i++)
                  data[p][i] = value_of(r.rank, step, p, i);
                findings.expect(weft_reducer_ready(reducer, p, data[p], nullptr) == WEFT_OK);
              }
              // The program's own collectives between begin and finish.
              int32_t one = 1;
              findings.expect(weft_all_reduce(r.comm, &one, &one, 1, WEFT_DTYPE_I32, WEFT_OP_SUM, nullptr,
                                              nullptr) == WEFT_OK);
              findings.expect(one == r.size);
              findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
              for (size_t p = 0; p < 5; p++) {
                for (size_t i = 0; i < model.gradients[p].size(); i++) {
                  findings.expect(data[p][i] == mean(r.size, step, p, i));
                }
              }
            }
            weft_reducer_stats stats{};
            stats.struct_size = sizeof stats;
            findings.expect(weft_reducer_query(reducer, &stats) == WEFT_OK);
            findings.expect(stats.steps == 3 && stats.failed_steps == 0 && stats.bytes_reduced > 0);
            findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK && reducer == nullptr);
          });
          INFO(backend << " mode " << mode << " progress " << progress << " ranks " << size << " " << error);
          CHECK(error.empty());
          CHECK(findings.wrong == 0);
        }
      }
    }
  }
}

TEST_CASE("wrong options of one rank fail all ranks at once, and the error names the rank and the reason") {
  for (const char* backend : kBackends) {
    for (const int mistake : {0, 1, 2, 3}) {
      Findings findings;
      const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
        Model model(WEFT_GRADIENT_COPY);
        const weft_reducer_options* options = &model.options;
        if (r.rank == 1) {
          if (mistake == 0) options = nullptr;
          if (mistake == 1) model.options.struct_size = 3;
          if (mistake == 2) model.options.param_count = 0;
          if (mistake == 3) model.options.param_size = 4;
        }
        weft_reducer* reducer = nullptr;
        weft_error details = WEFT_ERROR_INIT;
        const weft_status status = weft_reducer_create(r.comm, options, &reducer, &details);
        findings.expect(status == (r.rank == 1 ? WEFT_ERR_ARG : WEFT_ERR_MISMATCH));
        if (r.rank == 0) findings.expect(std::string(details.text).find("rank 1") != std::string::npos);
        findings.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK);  // the communicator is unharmed
      });
      INFO(backend << " mistake " << mistake);
      CHECK(error.empty());
      CHECK(findings.wrong == 0);
    }
  }
}

TEST_CASE(
    "a reducer destroyed in the middle of a step, its communicator before it, and its context before both") {
  for (const char* backend : kBackends) {
    Findings findings;
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      for (int order = 0; order < 3; order++) {
        weft_comm* part = nullptr;
        findings.expect(weft_comm_split(r.comm, 0, r.rank, &part, nullptr) == WEFT_OK);
        if (part == nullptr) return;
        Model model(WEFT_GRADIENT_COPY);
        weft_reducer* reducer = nullptr;
        findings.expect(weft_reducer_create(part, &model.options, &reducer, nullptr) == WEFT_OK);
        findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
        findings.expect(weft_reducer_ready(reducer, 4, model.gradients[4].data(), nullptr) == WEFT_OK);
        // A rank that destroys its part first fails it for the other rank, so both wait for each other here.
        findings.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK);
        if (order == 0) findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
        if (order == 2) {
          findings.expect(weft_comm_destroy(&r.comm) == WEFT_OK);
          findings.expect(weft_context_destroy(&r.context) == WEFT_OK);
        }
        findings.expect(weft_comm_destroy(&part) == WEFT_OK);
        if (reducer != nullptr) {
          findings.expect(weft_reducer_ready(reducer, 3, model.gradients[3].data(), nullptr) != WEFT_OK ||
                          weft_reducer_finish(reducer, nullptr) != WEFT_OK);
        }
        findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
      }
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("a trace shows every bucket's launch, and stopping a trace that was not started is an error") {
  Findings findings;
  const std::string path = "/tmp/weft-test-trace-" + std::to_string(getpid()) + ".json";
  const std::string error = weft_test::run("loopback", 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    findings.expect(weft_trace_stop(r.context) == WEFT_ERR_STATE);
    findings.expect(weft_trace_start(r.context, 0) == WEFT_OK);
    findings.expect(weft_trace_start(r.context, 0) == WEFT_ERR_STATE);
    Model model(WEFT_GRADIENT_COPY);
    weft_reducer* reducer = nullptr;
    findings.expect(weft_reducer_create(r.comm, &model.options, &reducer, nullptr) == WEFT_OK);
    if (reducer == nullptr) return;
    findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
    for (size_t p = 0; p < 5; p++) {
      findings.expect(weft_reducer_ready(reducer, p, model.gradients[p].data(), nullptr) == WEFT_OK);
    }
    findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
    findings.expect(weft_trace_stop(r.context) == WEFT_OK);
    if (r.rank == 0) findings.expect(weft_trace_write(r.context, path.c_str()) == WEFT_OK);
    findings.expect(weft_trace_write(r.context, "/nonexistent/folder/trace.json") == WEFT_ERR_SYSTEM);
    weft_reducer_destroy(&reducer);
  });
  CHECK(error.empty());
  CHECK(findings.wrong == 0);
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  CHECK(text.find("launch") != std::string::npos);
  CHECK(text.find("layer4.weight") != std::string::npos);
  std::remove(path.c_str());
}

TEST_CASE("a hook of the program's own decides how a bucket is communicated") {
  for (const char* backend : kBackends) {
    Findings findings;
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      // This hook doubles the gradients before their mean is taken.
      weft_hook_table table{};
      table.struct_size = sizeof table;
      table.name = "doubling";
      table.plan = [](void*, const weft_bucket* bucket, weft_hook_plan* plan, char*) -> weft_status {
        plan->collective_count = 1;
        plan->collectives[0].coll = WEFT_COLL_ALL_REDUCE;
        plan->collectives[0].dtype = bucket->dtype;
        plan->collectives[0].op = WEFT_OP_AVG;
        plan->collectives[0].count = bucket->count;
        return WEFT_OK;
      };
      table.stage = [](void* user_data, const weft_bucket* bucket, weft_stage* stage, char*) -> weft_status {
        if (stage->index != 0) return WEFT_OK;
        auto* values = static_cast<float*>(bucket->buffer);
        for (uint64_t i = 0; i < bucket->count; i++) values[i] *= 2.0f;
        (*static_cast<std::atomic<int>*>(user_data))++;
        return WEFT_OK;
      };
      std::atomic<int> stages{0};
      weft_hook* hook = nullptr;
      findings.expect(weft_hook_create_custom(r.context, &table, &stages, &hook) == WEFT_OK);
      Model model(WEFT_GRADIENT_COPY);
      model.options.hook = hook;
      weft_reducer* reducer = nullptr;
      findings.expect(weft_reducer_create(r.comm, &model.options, &reducer, nullptr) == WEFT_OK);
      if (reducer == nullptr) return;
      findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
      for (size_t p = 0; p < 5; p++) {
        for (size_t i = 0; i < model.gradients[p].size(); i++)
          model.gradients[p][i] = value_of(r.rank, 0, p, i);
        findings.expect(weft_reducer_ready(reducer, p, model.gradients[p].data(), nullptr) == WEFT_OK);
      }
      findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
      findings.expect(model.gradients[1][5] == 2.0f * mean(2, 0, 1, 5));
      uint32_t buckets = 0;
      weft_reducer_bucket_count(reducer, &buckets);
      findings.expect(stages == static_cast<int>(buckets));
      weft_reducer_destroy(&reducer);
      weft_hook_destroy(&hook);
      findings.expect(weft_hook_create(r.context, "no such hook", nullptr, &hook) == WEFT_ERR_ARG &&
                      hook == nullptr);
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE(
    "committed and retained steps are reported; only a retained step is retried, an open one not bound") {
  for (const char* const backend : kBackends) {
    INFO(backend);
    Findings findings;
    const std::string error = weft_test::run(backend, 2, WEFT_PROGRESS_THREAD, [&](Rank& r) {
      for (const uint64_t retain : {uint64_t{0}, WEFT_REDUCER_RETAIN}) {
        Model model(WEFT_GRADIENT_COPY);
        model.options.flags = retain;
        weft_reducer* reducer = nullptr;
        findings.expect(weft_reducer_create(r.comm, &model.options, &reducer, nullptr) == WEFT_OK);
        if (reducer == nullptr) return;
        weft_verdict verdict{};
        verdict.struct_size = sizeof verdict;
        findings.expect(weft_reducer_verdict(reducer, &verdict) == WEFT_OK);
        findings.expect(verdict.last_finished_step == WEFT_NO_STEP && verdict.next_step == 0);
        findings.expect(weft_reducer_retry(reducer, nullptr) == WEFT_ERR_STATE);
        for (uint64_t step = 0; step < 3; step++) {
          findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
          findings.expect(weft_reducer_rebind(reducer, r.comm, nullptr) == WEFT_ERR_STATE);
          findings.expect(weft_reducer_retry(reducer, nullptr) == WEFT_ERR_STATE);
          for (size_t p = 0; p < 5; p++) {
            findings.expect(weft_reducer_ready(reducer, p, model.gradients[p].data(), nullptr) == WEFT_OK);
          }
          weft_finish_options options = WEFT_FINISH_OPTIONS_INIT;
          options.flags = 48;
          findings.expect(weft_reducer_finish(reducer, &options) == WEFT_ERR_ARG);
          options.flags = step == 2 ? WEFT_FINISH_COMMIT : 0;
          findings.expect(weft_reducer_finish(reducer, &options) == WEFT_OK);
          findings.expect(weft_reducer_verdict(reducer, &verdict) == WEFT_OK);
          findings.expect(verdict.last_finished_step == step && verdict.next_step == step + 1);
          const bool known = retain != 0 || step == 2;
          findings.expect(verdict.last_committed_step == (known       ? step
                                                          : step == 0 ? WEFT_NO_STEP
                                                                      : step - 1));
          findings.expect(verdict.can_retry == 0 && verdict.rolled_back == 0);
        }
        weft_reducer_stats stats{};
        stats.struct_size = sizeof stats;
        findings.expect(weft_reducer_query(reducer, &stats) == WEFT_OK);
        findings.expect((stats.retained_bytes >= (7 + 1500 + 333 + 1 + 2049) * 4) == (retain != 0));
        findings.expect(weft_reducer_rebind(reducer, nullptr, nullptr) == WEFT_ERR_ARG);
        // Between steps the reducer may be bound to any communicator, also to its own.
        findings.expect(weft_reducer_rebind(reducer, r.comm, nullptr) == WEFT_OK);
        findings.expect(weft_reducer_verdict(reducer, &verdict) == WEFT_OK);
        findings.expect(verdict.last_committed_step == 2 && verdict.next_step == 3);
        findings.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
        for (size_t p = 0; p < 5; p++) {
          findings.expect(weft_reducer_ready(reducer, p, model.gradients[p].data(), nullptr) == WEFT_OK);
        }
        findings.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
        findings.expect(weft_reducer_destroy(&reducer) == WEFT_OK);
      }
    });
    CHECK(error.empty());
    CHECK(findings.wrong == 0);
  }
}

TEST_CASE("the first gradient with other strides is one line of the log, and all of them are counted") {
  std::atomic<int> lines{0};
  weft_context_options context_options = WEFT_CONTEXT_OPTIONS_INIT;
  context_options.log_level = WEFT_LOG_WARN;
  context_options.log_user_data = &lines;
  context_options.log = [](void* user_data, int32_t /*level*/, const char* line) {
    if (std::strstr(line, "'weight'") != nullptr &&
        std::strstr(line, "WEFT_REDUCER_STRICT_STRIDES") != nullptr)
      ++*static_cast<std::atomic<int>*>(user_data);
  };
  weft_context* context = nullptr;
  REQUIRE(weft_context_create(&context_options, &context, nullptr) == WEFT_OK);
  weft_test::Gathering alone(1);
  weft_test::Member member{&alone, 0};
  weft_comm_options comm_options = WEFT_COMM_OPTIONS_INIT;
  comm_options.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
  comm_options.size = 1;
  comm_options.all_gather = weft_test::gather;
  comm_options.all_gather_user_data = &member;
  comm_options.backend = "loopback";
  weft_comm* comm = nullptr;
  REQUIRE(weft_comm_create(context, &comm_options, &comm, nullptr) == WEFT_OK);
  const int64_t shape[] = {2, 3}, turned[] = {1, 2};
  weft_param param = WEFT_PARAM_INIT;
  param.name = "weight";
  param.dtype = WEFT_DTYPE_F32;
  param.ndim = 2;
  param.shape = shape;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  weft_reducer* reducer = nullptr;
  REQUIRE(weft_reducer_create(comm, &options, &reducer, nullptr) == WEFT_OK);
  float gradient[6] = {1, 2, 3, 4, 5, 6};
  weft_tensor tensor = WEFT_TENSOR_INIT;
  tensor.data = gradient;
  tensor.dtype = WEFT_DTYPE_F32;
  tensor.ndim = 2;
  tensor.shape = shape;
  tensor.strides = turned;
  for (int step = 0; step < 3; step++) {
    CHECK(weft_reducer_begin(reducer, nullptr) == WEFT_OK);
    CHECK(weft_reducer_ready_tensor(reducer, 0, &tensor, nullptr) == WEFT_OK);
    CHECK(weft_reducer_finish(reducer, nullptr) == WEFT_OK);
  }
  weft_reducer_stats stats{};
  stats.struct_size = sizeof stats;
  CHECK(weft_reducer_query(reducer, &stats) == WEFT_OK);
  CHECK(stats.copied_gradients == 3);
  CHECK(gradient[5] == 6);
  weft_reducer_destroy(&reducer);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  CHECK(lines == 1);
}

}  // namespace capi_reducer
