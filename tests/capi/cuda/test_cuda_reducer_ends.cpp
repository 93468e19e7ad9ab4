// Steps of device gradients in unusual conditions: a device that copies results beyond the deadline, and the
// legacy default stream during a capture. Runs on the fake CUDA.
#include <atomic>
#include <chrono>
#include <thread>

#include "capi/reducer_pair.h"

namespace capi_cuda_reducer_ends {

using namespace weft_test;

namespace {

constexpr int64_t kCount = 5000;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A reducer of two gradients in one bucket.
class Pair {
 public:
  explicit Pair(Rank& rank, int64_t timeout_ms = 0) {
    const uint64_t limit = 1 << 20;
    weft_param params[2] = {WEFT_PARAM_INIT, WEFT_PARAM_INIT};
    for (weft_param& param : params) {
      param.name = &param == params ? "first" : "last";
      param.dtype = WEFT_DTYPE_F32;
      param.ndim = 1;
      param.shape = &kCount;
      param.device_kind = WEFT_DEVICE_CUDA;
    }
    weft_reducer_options options = WEFT_REDUCER_OPTIONS_INIT;
    options.params = params;
    options.param_count = 2;
    options.accumulation = WEFT_ACCUMULATION_REDUCER;
    options.bucket_limits = &limit;
    options.bucket_limit_count = 1;
    options.timeout_ms = timeout_ms;
    weft_error error = WEFT_ERROR_INIT;
    if (weft_reducer_create(rank.comm, &options, &reducer_, &error) != WEFT_OK) created_ = error.text;
  }
  ~Pair() { weft_reducer_destroy(&reducer_); }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  const std::string& created() const { return created_; }
  std::string error() const { return ReducerPair::error(reducer_); }
  bool begin(uint64_t flags = 0) {
    weft_begin_options options = WEFT_BEGIN_OPTIONS_INIT;
    options.flags = flags;
    return weft_reducer_begin(reducer_, &options) == WEFT_OK;
  }
  weft_status ready(uint64_t param, const weft_stream* stream) {
    return weft_reducer_ready(reducer_, param, buffers_[param].get(), stream);
  }
  weft_status finish() { return weft_reducer_finish(reducer_, nullptr); }
  DeviceBuffer<float>& buffer(uint64_t param) { return buffers_[param]; }

 private:
  weft_reducer* reducer_ = nullptr;
  std::string created_;
  DeviceBuffer<float> buffers_[2] = {DeviceBuffer<float>(kCount), DeviceBuffer<float>(kCount)};
};

// Captures, for a scope, a stream that the legacy default stream waits for.
class Capture {
 public:
  Capture() {
    cudaStreamCreateWithFlags(&stream_, 0);
    cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
  }
  // Ends the capture. Returns true if no call has invalidated it.
  bool end() {
    cudaGraph_t graph = nullptr;
    const bool good = cudaStreamEndCapture(stream_, &graph) == cudaSuccess;
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream_);
    (void)cudaGetLastError();
    return good;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

constexpr weft_stream kLegacy = {sizeof(weft_stream), WEFT_DEVICE_CUDA, 0, nullptr};

}  // namespace

TEST_CASE("finish does not return gradients to the program while a device writes results into them") {
  const FakeCuda fake;
  RankFailures failures;
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const Stream stream;
    Pair pair(r, 300);
    failures.expect(pair.created());
    const auto step = [&] {
      const bool good =
          pair.begin() && pair.ready(0, stream.view()) == WEFT_OK && pair.ready(1, stream.view()) == WEFT_OK;
      return good ? pair.finish() : WEFT_ERR_INTERNAL;
    };
    failures.expect(step() == WEFT_OK, pair.error());
    // The copy of gradients into the bucket runs; the copy of results out of it stalls.
    fake_cuda_stall("weft_copy_pieces", 1);
    failures.expect(step() == WEFT_ERR_TIMEOUT, "the step does not fail");
    failures.expect(has(pair.error(), "Weft is still reading gradients or writing results into them"),
                    pair.error());
    fake_cuda_stall("", 0);
  }));
  failures.check();
}

TEST_CASE("finish that gives up waits for the results that a device is writing") {
  const FakeCuda fake;
  RankFailures failures;
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const Stream stream;
    Pair pair(r, 300);
    failures.expect(pair.created());
    fake_cuda_stall("weft_copy_pieces", 1);
    std::atomic<bool> goes_on{false};
    // 3 s are longer than the deadline plus the time that is allowed for noticing it.
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(3000));
      goes_on = true;
      fake_cuda_stall("", 0);
    });
    failures.expect(
        pair.begin() && pair.ready(0, stream.view()) == WEFT_OK && pair.ready(1, stream.view()) == WEFT_OK,
        pair.error());
    pair.finish();
    // If the machine is so busy that finish returned too early, the error states that the copy may still run.
    failures.expect(goes_on || has(pair.error(), "Weft is still reading gradients"), pair.error());
    later.join();
  }));
  failures.check();
}

TEST_CASE(
    "a capture that begins inside a step stays valid, and the step waits for the legacy default stream") {
  const FakeCuda fake;
  RankFailures failures;
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const Stream stream;
    Pair pair(r);
    failures.expect(pair.created());
    for (const uint64_t p : {0, 1}) pair.buffer(p).write(stream, [&](size_t) { return 3.0f; });
    cudaStreamSynchronize(stream.get());
    failures.expect(pair.begin() && pair.ready(0, &kLegacy) == WEFT_OK, pair.error());
    Capture capture;
    // The bucket is full, so the reducer now queries the work of the legacy default stream.
    failures.expect(pair.ready(1, stream.view()) == WEFT_OK, pair.error());
    // Gives the progress thread time to query it too.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    failures.expect(weft_barrier(r.comm, nullptr, nullptr) == WEFT_OK, error_of(r.comm));
    failures.expect(capture.end(), "the capture is spoilt");
    failures.expect(pair.finish() == WEFT_OK, pair.error());
    for (const uint64_t p : {0, 1})
      failures.expect(pair.buffer(p).read(stream) == std::vector<float>(kCount, 3.0f), "the averages");
  }));
  failures.check();
}

TEST_CASE("the legacy default stream is refused by name during a capture, and nothing fails") {
  const FakeCuda fake;
  RankFailures failures;
  failures.expect(run("loopback", 1, WEFT_PROGRESS_THREAD, [&](Rank& r) {
    const Stream stream;
    Pair pair(r);
    failures.expect(pair.created());
    for (const uint64_t flags : {uint64_t{0}, WEFT_BEGIN_LOCAL}) {
      // Also refused if the stream was noted before the capture, with the bucket's other gradient.
      failures.expect(pair.begin(flags) && pair.ready(0, &kLegacy) == WEFT_OK, pair.error());
      Capture capture;
      failures.expect(pair.ready(1, &kLegacy) == WEFT_ERR_STATE, "ready is taken");
      failures.expect(has(pair.error(), "the legacy default stream cannot be used while"), pair.error());
      const weft_coll_options options = on(&kLegacy);
      failures.expect(weft_all_reduce(r.comm, pair.buffer(0).get(), pair.buffer(0).get(), 1, WEFT_DTYPE_F32,
                                      WEFT_OP_SUM, &options, nullptr) == WEFT_ERR_STATE,
                      "a collective is taken");
      failures.expect(capture.end(), "the capture is spoilt");
      failures.expect(pair.ready(1, &kLegacy) == WEFT_OK && pair.finish() == WEFT_OK, pair.error());
    }
    failures.expect(pair.begin() && pair.ready(0, &kLegacy) == WEFT_OK &&
                        pair.ready(1, &kLegacy) == WEFT_OK && pair.finish() == WEFT_OK,
                    pair.error());
  }));
  failures.check();
}

}  // namespace capi_cuda_reducer_ends
