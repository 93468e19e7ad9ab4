// A rank for test_report.py: STEPS steps of a reducer, of which it writes the trace FOLDER/rank<rank>.json.
// In each step rank VICTIM sleeps for MILLISECONDS in the phase PLACE: backward, before or finish. With the
// place "collectives" it calls all_reduce instead, and sleeps before it. Arguments: FOLDER STEPS PLACE VICTIM
// MILLISECONDS
#include <weft/weft.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kElements = 100'000;

struct Plan {
  std::string folder;
  int steps = 0;
  std::string place;
  bool victim = false;
  std::chrono::milliseconds delay{};

  void sleep_in(const char* here) const {
    if (victim && place == here) std::this_thread::sleep_for(delay);
  }
};

void check(weft_status status, const char* call, const weft_error& error) {
  if (status == WEFT_OK) return;
  std::fprintf(stderr, "%s: %d: %s\n", call, status, error.text);
  std::exit(1);
}

void train(weft_comm* comm, const Plan& plan) {
  const int64_t shape = kElements;
  const weft_param params[2] = {
      {sizeof(weft_param), "first.weight", WEFT_DTYPE_F32, 1, &shape, nullptr, 0, 0, 0},
      {sizeof(weft_param), "last.<weight>", WEFT_DTYPE_F32, 1, &shape, nullptr, 0, 0, 0}};
  const uint64_t limit = 0;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params;
  options.param_count = 2;
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  weft_reducer* reducer = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  check(weft_reducer_create(comm, &options, &reducer, &error), "weft_reducer_create", error);
  std::vector<float> gradients(2 * kElements, 1.0f);
  for (int step = 0; step < plan.steps; step++) {
    plan.sleep_in("before");
    check(weft_reducer_begin(reducer, nullptr), "weft_reducer_begin", error);
    check(weft_reducer_ready(reducer, 1, gradients.data() + kElements, nullptr), "weft_reducer_ready", error);
    plan.sleep_in("backward");
    check(weft_reducer_ready(reducer, 0, gradients.data(), nullptr), "weft_reducer_ready", error);
    plan.sleep_in("finish");
    check(weft_reducer_finish(reducer, nullptr), "weft_reducer_finish", error);
  }
  weft_reducer_destroy(&reducer);
}

void reduce(weft_comm* comm, const Plan& plan) {
  std::vector<float> data(kElements, 1.0f);
  const weft_error error = WEFT_ERROR_INIT;
  for (int step = 0; step < plan.steps; step++) {
    plan.sleep_in("collectives");
    check(weft_all_reduce(comm, data.data(), data.data(), kElements, WEFT_DTYPE_F32, WEFT_OP_MAX, nullptr,
                          nullptr),
          "weft_all_reduce", error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  check(weft_context_create(nullptr, &context, &error), "weft_context_create", error);
  check(weft_comm_create(context, nullptr, &comm, &error), "weft_comm_create", error);
  weft_comm_info info = WEFT_COMM_INFO_INIT;
  check(weft_comm_query(comm, &info), "weft_comm_query", error);
  const Plan plan{argv[1], std::atoi(argv[2]), argv[3], info.rank == std::atoi(argv[4]),
                  std::chrono::milliseconds(std::atoi(argv[5]))};
  check(weft_trace_start(context, 0), "weft_trace_start", error);
  plan.place == "collectives" ? reduce(comm, plan) : train(comm, plan);
  check(weft_trace_stop(context), "weft_trace_stop", error);
  const std::string path = plan.folder + "/rank" + std::to_string(info.rank) + ".json";
  check(weft_trace_write(context, path.c_str()), "weft_trace_write", error);
  check(weft_barrier(comm, nullptr, nullptr), "weft_barrier", error);
  weft_comm_destroy(&comm);
  weft_context_destroy(&context);
  return 0;
}
