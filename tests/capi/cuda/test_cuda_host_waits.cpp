// Without WEFT_CONTEXT_STREAM_WAITS, and where CUDA loads kernels lazily, no stream waits for the host. So a
// program may make a call that waits for the whole device (cudaFree) between its calls. Runs on the fake
// CUDA, and in tests/gpu on a real one.
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "capi/cuda.h"
#include "capi/ranks.h"

namespace capi_cuda_host_waits {

using namespace weft_test;

namespace {

constexpr int64_t kCount = 5000;

// Runs two ranks whose contexts have these flags. Returns the errors of their creation.
std::string run_waiting(int32_t progress, uint64_t flags, const std::function<void(Rank&)>& body) {
  Gathering gathering(2);
  RankFailures failures;
  std::string errors[2];
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; r++) {
    threads.emplace_back([&, r] {
      Rank rank;
      rank.rank = r;
      rank.size = 2;
      Member member{&gathering, r};
      weft_error error = WEFT_ERROR_INIT;
      weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
      options.progress = progress;
      options.flags = flags;
      weft_comm_options comm = WEFT_COMM_OPTIONS_INIT;
      comm.bootstrap = WEFT_BOOTSTRAP_CALLBACK;
      comm.rank = r;
      comm.size = 2;
      comm.all_gather = gather;
      comm.all_gather_user_data = &member;
      comm.backend = "loopback";
      comm.init_timeout_ms = comm.op_timeout_ms = 20'000;
      if (weft_context_create(&options, &rank.context, &error) == WEFT_OK &&
          weft_comm_create(rank.context, &comm, &rank.comm, &error) == WEFT_OK) {
        body(rank);
      } else {
        errors[r] = error.text;
      }
      weft_comm_destroy(&rank.comm);
      weft_context_destroy(&rank.context);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors[0] + errors[1];
}

// Calls cudaFree, which waits for all streams of the device.
bool free_something() {
  void* memory = nullptr;
  return cudaMalloc(&memory, 100) == cudaSuccess && cudaFree(memory) == cudaSuccess;
}

bool done(weft_request* request) {
  uint8_t is_done = 0;
  return weft_request_test(request, &is_done) == WEFT_OK && is_done == 1;
}

// Runs steps in which finish and weft_reducer_stream_wait_param wait on the host.
void check_steps(int32_t progress, uint64_t flags) {
  RankFailures failures;
  failures.expect(run_waiting(progress, flags, [&](Rank& r) {
    const Stream stream;
    DeviceBuffer<float> gradient(kCount);
    weft_param param = WEFT_PARAM_INIT;
    param.name = "p";
    param.dtype = WEFT_DTYPE_F32;
    param.ndim = 1;
    param.shape = &kCount;
    param.device_kind = WEFT_DEVICE_CUDA;
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = &param;
    options.param_count = 1;
    weft_reducer* reducer = nullptr;
    weft_error error = WEFT_ERROR_INIT;
    const bool created = weft_reducer_create(r.comm, &options, &reducer, &error) == WEFT_OK;
    failures.expect(created, error.text);
    if (!created) return;
    weft_finish_options finish = WEFT_FINISH_OPTIONS_INIT;
    finish.stream = stream.view();
    for (int step = 0; step < 2; step++) {
      gradient.write(stream, [&](size_t) { return static_cast<float>(r.rank + step); });
      failures.expect(weft_reducer_begin(reducer, nullptr) == WEFT_OK, "begin");
      failures.expect(weft_reducer_ready(reducer, 0, gradient.get(), stream.view()) == WEFT_OK, "ready");
      if (step == 1) {
        failures.expect(weft_reducer_stream_wait_param(reducer, 0, stream.view()) == WEFT_OK, "wait");
        failures.expect(free_something(), "cudaFree inside a step");
      }
      failures.expect(weft_reducer_finish(reducer, &finish) == WEFT_OK, "finish");
      failures.expect(free_something(), "cudaFree behind a step");
      // As where streams wait: the program may ask for the result once.
      failures.expect(weft_reducer_finish(reducer, nullptr) == WEFT_OK, "the result");
      failures.expect(weft_reducer_finish(reducer, nullptr) == WEFT_ERR_STATE, "the result, twice");
      failures.expect(gradient.read(stream) == std::vector<float>(kCount, 0.5f + static_cast<float>(step)),
                      "the averages");
    }
    weft_reducer_destroy(&reducer);
  }));
  failures.check();
}

}  // namespace

TEST_CASE("without WEFT_CONTEXT_STREAM_WAITS a call on a stream returns when its operation is over") {
  for (const int32_t progress : kModes) {
    const FakeCuda fake(1, 2, 300);
    RankFailures failures;
    failures.expect(run_waiting(progress, 0, [&](Rank& r) {
      const Stream stream;
      DeviceBuffer<float> one(kCount), two(kCount);
      const auto mine = static_cast<float>(r.rank + 1);
      one.write(stream, [&](size_t) { return mine; });
      two.write(stream, [&](size_t) { return mine; });
      const weft_coll_options options = on(stream);
      const auto reduce = [&](DeviceBuffer<float>& buffer, weft_request** request) {
        return weft_all_reduce(r.comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_F32, WEFT_OP_SUM,
                               &options, request);
      };
      weft_request* request = nullptr;
      failures.expect(reduce(one, &request) == WEFT_OK && done(request), "a request");
      weft_request_release(&request);
      failures.expect(free_something(), "cudaFree behind a request");
      weft_request* all = nullptr;
      weft_group_begin(r.comm);
      reduce(one, nullptr);
      reduce(two, nullptr);
      failures.expect(weft_group_end(r.comm, &all) == WEFT_OK && done(all), "a group's request");
      weft_request_release(&all);
      failures.expect(free_something(), "cudaFree behind a group");
      failures.expect(one.read(stream) == std::vector<float>(kCount, 6), "the first sums");
      failures.expect(two.read(stream) == std::vector<float>(kCount, 3), "the second sums");
    }));
    failures.check();
  }
}

TEST_CASE("without WEFT_CONTEXT_STREAM_WAITS finish and weft_reducer_stream_wait_param wait on the host") {
  for (const int32_t progress : kModes) {
    const FakeCuda fake(1, 4, 300);
    check_steps(progress, 0);
  }
}

#ifndef WEFT_TEST_REAL_CUDA
TEST_CASE("where CUDA loads kernels lazily, finish and weft_reducer_stream_wait_param wait on the host") {
  const FakeCuda fake(1, 4, 300);
  fake_cuda_load_lazily(1);
  check_steps(WEFT_PROGRESS_THREAD, WEFT_CONTEXT_STREAM_WAITS);
}
#endif

TEST_CASE("unknown flags of a context are refused by value") {
  weft_context_options options = WEFT_CONTEXT_OPTIONS_INIT;
  options.flags = 7;
  weft_context* context = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  CHECK(weft_context_create(&options, &context, &error) == WEFT_ERR_ARG);
  CHECK(std::string(error.text).find("weft_context_options.flags has unknown flags 0x5") !=
        std::string::npos);
}

}  // namespace capi_cuda_host_waits
