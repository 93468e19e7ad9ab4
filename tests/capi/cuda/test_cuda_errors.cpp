// CUDA's last error of a thread belongs to the program. Weft does not consume an error that the program has
// yet to read, and leaves none of its own. Runs on the fake CUDA, and in tests/gpu on a real one.
#include <string>

#include "capi/cuda.h"
#include "capi/ranks.h"

namespace capi_cuda_errors {

using namespace weft_test;

namespace {

constexpr int64_t kCount = 5000;

// Runs one step of a reducer with one gradient on the stream; finish waits on the host. Returns the failure.
std::string step(Rank& r, const Stream& stream, float* gradient) {
  weft_param param = WEFT_PARAM_INIT;
  param.name = "p";
  param.dtype = WEFT_DTYPE_F32;
  param.ndim = 1;
  param.shape = &kCount;
  param.device_kind = WEFT_DEVICE_CUDA;
  param.device = stream.device();
  weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
  options.params = &param;
  options.param_count = 1;
  weft_reducer* reducer = nullptr;
  weft_error error = WEFT_ERROR_INIT;
  if (weft_reducer_create(r.comm, &options, &reducer, &error) != WEFT_OK) return error.text;
  const bool good = weft_reducer_begin(reducer, nullptr) == WEFT_OK &&
                    weft_reducer_ready(reducer, 0, gradient, stream.view()) == WEFT_OK &&
                    weft_reducer_finish(reducer, nullptr) == WEFT_OK;
  if (!good) weft_reducer_error(reducer, &error);
  weft_reducer_destroy(&reducer);
  return good ? "" : std::string("a step: ") + error.text;
}

// Makes every kind of call that uses CUDA on this thread, including failing ones. Calls `check` after each.
template <class Check>
void use_device(Rank& r, RankFailures* failures, Check&& check) {
  const Stream stream;
  DeviceBuffer<float> buffer(kCount);
  std::vector<float> host(kCount);
  check("what the test needs");
  const weft_coll_options options = on(stream);
  const auto reduce = [&](float* at, weft_request** request) {
    return weft_all_reduce(r.comm, at, at, kCount, WEFT_DTYPE_F32, WEFT_OP_SUM, &options, request);
  };
  failures->expect(reduce(buffer.get(), nullptr) == WEFT_OK, error_of(r.comm));
  check("a collective");
  weft_request* request = nullptr;
  failures->expect(reduce(buffer.get(), &request) == WEFT_OK, error_of(r.comm));
  failures->expect(weft_request_wait(request, 10'000) == WEFT_OK, error_of(r.comm));
  weft_request_release(&request);
  check("a collective with a request");
  failures->expect(reduce(host.data(), nullptr) == WEFT_ERR_ARG, "host memory was taken");
  check("host memory on a stream");
  failures->expect(step(r, stream, buffer.get()));
  check("a step");
}

}  // namespace

TEST_CASE("a CUDA error that the program has yet to read outlives Weft's calls, and they leave none") {
  for (const int32_t progress : kModes) {
    for (const bool pending : {true, false}) {
      const FakeCuda fake(2, 3, 2000);
      RankFailures failures;
      failures.expect(run("loopback", 2, progress, [&](Rank& r) {
        const cudaError_t expected = pending ? cudaErrorInvalidDevice : cudaSuccess;
        if (pending) cudaSetDevice(99);
        use_device(r, &failures, [&](const char* what) {
          const cudaError_t last = cudaPeekAtLastError();
          if (last != expected) failures.expect(std::string(what) + ": " + std::to_string(last));
        });
        failures.expect(cudaGetLastError() == expected, "the last error");
      }));
      failures.check();
    }
  }
}

#ifndef WEFT_TEST_REAL_CUDA
TEST_CASE("a CUDA call that fails inside Weft leaves the program's last error alone") {
  for (const char* const call : {"cudaMemcpyAsync", "cudaEventRecord", "cudaEventCreateWithFlags"}) {
    const FakeCuda fake;
    RankFailures failures;
    failures.expect(run("loopback", 1, WEFT_PROGRESS_CALLER, [&](Rank& r) {
      const Stream stream;
      DeviceBuffer<float> buffer(kCount);
      cudaSetDevice(99);
      fake_cuda_fail(call, cudaErrorMemoryAllocation);
      const weft_coll_options options = on(stream);
      failures.expect(weft_all_reduce(r.comm, buffer.get(), buffer.get(), kCount, WEFT_DTYPE_F32, WEFT_OP_SUM,
                                      &options, nullptr) != WEFT_OK,
                      std::string(call) + " does not fail");
      fake_cuda_fail(call, 0);
      failures.expect(cudaGetLastError() == cudaErrorInvalidDevice, call);
    }));
    failures.check();
  }
}
#endif

}  // namespace capi_cuda_errors
