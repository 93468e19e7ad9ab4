// A rank for test_flight.py: runs all-reduces and reduces gradients until its communicator fails, then ends
// at once, as programs do. Its arguments are SCENARIO VICTIM: rank VICTIM causes the failure.
#include <weft/weft.h>

#include <poll.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kElements = 20'000;
constexpr int kWhere = 7;  // the number of the operation or step

int fail(const char* call, const weft_error& error) {
  std::printf("%s: %d: %s\n", call, error.code, error.text);
  return error.code == 0 ? 3 : 0;
}

// Starts no operation until the communicator has failed, like a program that computes for long; 20 s at most.
void absent(weft_comm* comm) {
  for (int i = 0; i < 1000 && weft_comm_error(comm, nullptr) == WEFT_OK; i++) ::poll(nullptr, 0, 20);
}

int all_reduces(weft_comm* comm, const std::string& scenario, bool victim) {
  std::vector<float> data(kElements, 1.0f);
  weft_status status = WEFT_OK;
  for (int i = 0; status == WEFT_OK && i < 1000; i++) {
    uint64_t count = kElements;
    if (victim && i == kWhere) {
      if (scenario == "kill") ::raise(SIGKILL);
      if (scenario == "stop") ::raise(SIGSTOP);
      if (scenario == "absent") absent(comm);
      if (scenario == "mismatch") count--;
      if (scenario == "abort") weft_comm_abort(comm, "the loss is not a number");
    }
    status =
        weft_all_reduce(comm, data.data(), data.data(), count, WEFT_DTYPE_F32, WEFT_OP_MAX, nullptr, nullptr);
  }
  weft_error error = WEFT_ERROR_INIT;
  weft_comm_error(comm, &error);
  return fail("all_reduce", error);
}

int steps(weft_comm* comm, const std::string& scenario, bool victim) {
  const int64_t shape = kElements;
  const weft_param params[2] = {{sizeof(weft_param), "first", WEFT_DTYPE_F32, 1, &shape, nullptr, 0, 0, 0},
                                {sizeof(weft_param), "second", WEFT_DTYPE_F32, 1, &shape, nullptr, 0, 0, 0}};
  const uint64_t limit = 0;
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = params;
  options.param_count = 2;
  options.bucket_limits = &limit;
  options.bucket_limit_count = 1;
  weft_reducer* reducer = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  if (weft_reducer_create(comm, &options, &reducer, &error) != WEFT_OK) return fail("create", error);
  std::vector<float> gradients(2 * kElements, 1.0f);
  weft_status status = WEFT_OK;
  for (int step = 0; status == WEFT_OK && step < 1000; step++) {
    status = weft_reducer_begin(reducer, nullptr);
    if (status != WEFT_OK) break;
    weft_reducer_ready(reducer, 1, gradients.data() + kElements, nullptr);
    if (victim && step == kWhere && scenario == "backward") absent(comm);
    weft_reducer_ready(reducer, 0, gradients.data(), nullptr);
    status = weft_reducer_finish(reducer, nullptr);
  }
  weft_reducer_error(reducer, &error);
  return fail("finish", error);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string scenario = argv[1];
  const char* const rank_text = std::getenv("WEFT_RANK");
  const bool victim = rank_text != nullptr && std::string(rank_text) == argv[2];
  if (victim && scenario == "hook") setenv("WEFT_FAILPOINTS", "stage@1.0=fail", 1);
  weft_context* context = nullptr;
  weft_comm* comm = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  weft_comm_options options = WEFT_COMM_OPTIONS_INIT;
  options.op_timeout_ms = 1500;
  options.heartbeat_timeout_ms = 1000;
  if (weft_context_create(nullptr, &context, &error) != WEFT_OK ||
      weft_comm_create(context, &options, &comm, &error) != WEFT_OK) {
    std::fprintf(stderr, "%s\n", error.text);
    return 2;
  }
  const bool trains = scenario == "hook" || scenario == "backward";
  const int result = trains ? steps(comm, scenario, victim) : all_reduces(comm, scenario, victim);
  weft_comm_destroy(&comm);  // also waits until the record is written
  weft_context_destroy(&context);
  return result;
}
